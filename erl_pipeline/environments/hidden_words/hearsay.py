"""The notes and memory that demonstrations are told: slots, which may be wrong as reflections may."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Protocol

from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction, KnowsWords
from erl_pipeline.environments.hidden_words.prompts import UNKNOWN

Slots = Mapping[Direction, str]
"""Direction -> the action word that is said to move there; a direction that is not told is absent."""


class NoteErrors(Protocol):
    """How often notes are wrong."""

    @property
    def swapped_notes(self) -> float:
        """Share of notes with the words of two directions swapped."""
        ...

    @property
    def reshuffled_notes(self) -> float:
        """Share of notes whose words are in any order at all."""
        ...


def hearsay(stream: random.Random, world: KnowsWords, errors: NoteErrors) -> Slots:
    """One to four slots of a world: right, with the words of two directions swapped, or in any order."""
    words = [world.word_for(direction) for direction in DIRECTIONS]
    chance = stream.random()
    if chance < errors.swapped_notes:
        first, second = stream.sample(range(len(words)), 2)
        words[first], words[second] = words[second], words[first]
    elif chance < errors.swapped_notes + errors.reshuffled_notes:
        stream.shuffle(words)
    told = stream.sample(DIRECTIONS, stream.randint(1, 4))
    return {d: word for d, word in zip(DIRECTIONS, words, strict=True) if d in told}


def corrected(memory: Slots, seen: Slots) -> Slots:
    """What can be said after an attempt: what it has shown, and what it has not refuted of memory.

    A remembered word that moved elsewhere is dropped, so that its direction is unknown again.
    """
    kept = {direction: word for direction, word in memory.items() if word not in seen.values()}
    return {**kept, **seen}


def slots_text(known: Slots) -> str:
    """The four slots of a reflection that knows these action words."""
    return " ".join(known.get(direction, UNKNOWN) for direction in DIRECTIONS)
