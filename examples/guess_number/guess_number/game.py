"""Guess a number: settings, tasks, rules, and the texts for language models."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import Task
from storage.errors import InputError

Split = Literal["training", "held_out"]
Answer = Literal["higher", "lower", "found", "bad"]
"""The number is higher or lower than the guess; `bad`: the text held no number."""
_BRACKETED = re.compile(r"\[\s*(-?[0-9]{1,9})\s*\]")
_ANSWERS: dict[Answer, str] = {
    "higher": "The number is higher.",
    "lower": "The number is lower.",
    "found": "This is the number.",
    "bad": "Your answer held no number in square brackets.",
}


class GuessNumberConfig(PluginSettings):
    """Find a number in a given range: reward 1 when it is found, 0 when the guesses are used up."""

    type: Literal["guess_number"] = "guess_number"
    largest: int = Field(default=24, ge=4, le=999)
    """All numbers are between 1 and this one."""
    width: tuple[int, int] = (10, 15)
    """Least and most numbers in the range of a task."""
    max_guesses: int = Field(default=4, ge=1, le=16)
    """Guesses in one attempt; an answer that holds no number costs one too. Halving the range finds one of
    `2 ** max_guesses - 1` numbers for sure."""
    held_out_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of the ranges that no training task has; held-out tasks are made of them."""
    split_seed: int = Field(default=0, ge=0)
    """Chooses these ranges, and the order of all tasks."""
    format: Literal["prose", "compact"] = "compact"
    """`prose` is for language models; `compact` is word-level, for the tiny policy."""

    @model_validator(mode="after")
    def _possible_widths(self) -> GuessNumberConfig:
        least, most = self.width
        if not 2 <= least <= most <= self.largest:
            raise ValueError(
                f"width: {[least, most]}: allowed is [least, most] with 2 <= least <= most <= {self.largest} "
                "(largest)"
            )
        if least == self.largest:
            raise ValueError(
                f"width: {[least, most]}: with largest: {self.largest} there is one range only, and held-out "
                "tasks need another"
            )
        return self


def training_tasks(settings: GuessNumberConfig, seed: int) -> list[Task]:
    """Every number of every training range, in a random order. The run's seed changes nothing."""
    return _tasks(settings, "training")


def held_out_tasks(settings: GuessNumberConfig, seed: int, count: int) -> list[Task]:
    """The first `count` of the held-out tasks. Raises `InputError` when there are fewer."""
    found = _tasks(settings, "held_out")
    if count > len(found):
        raise InputError(
            f"evaluation.tasks: {count} held-out tasks are asked for, but there are {len(found)} with "
            f"environment.largest: {settings.largest}, width: {list(settings.width)} and held_out_share: "
            f"{settings.held_out_share}; ask for fewer, or change these"
        )
    return found[:count]


def ranges(settings: GuessNumberConfig, split: Split) -> list[tuple[int, int]]:
    """The ranges of a split, each as its first and its last number."""
    least, most = settings.width
    found = [
        (low, low + width - 1)
        for width in range(least, most + 1)
        for low in range(1, settings.largest - width + 2)
    ]
    random.Random(f"ranges/{settings.split_seed}").shuffle(found)
    held_out = min(len(found) - 1, max(1, round(settings.held_out_share * len(found))))
    return found[:held_out] if split == "held_out" else found[held_out:]


def _tasks(settings: GuessNumberConfig, split: Split) -> list[Task]:
    found = list(_all_of(ranges(settings, split)))
    random.Random(f"tasks/{settings.split_seed}").shuffle(found)
    return found


def _all_of(chosen: Iterable[tuple[int, int]]) -> Iterable[Task]:
    for low, high in chosen:
        for number in range(low, high + 1):
            payload = {"low": low, "high": high, "number": number}
            task_type = f"guess_number-{high - low + 1}"
            yield Task(f"guess_number-{low}-{high}-{number}", task_type, "guess_number", payload)


@dataclass(frozen=True)
class Guess:
    """A guess, None where the text held none, and the answer to it."""

    number: int | None
    answer: Answer


class Game:
    """The state of one attempt."""

    def __init__(self, low: int, high: int, number: int, max_guesses: int) -> None:
        self.low, self.high, self.max_guesses = low, high, max_guesses
        self._number = number
        self._guesses: list[Guess] = []

    @property
    def guesses(self) -> Sequence[Guess]:
        """What was guessed so far."""
        return self._guesses

    @property
    def found(self) -> bool:
        """Whether the last guess was right."""
        return bool(self._guesses) and self._guesses[-1].answer == "found"

    @property
    def over(self) -> bool:
        """Whether no further guess can be made."""
        return self.found or len(self._guesses) == self.max_guesses

    def guess(self, number: int | None) -> Guess:
        """Make a guess; None stands for a text without a number."""
        made = Guess(number, self._answer(number))
        self._guesses.append(made)
        return made

    def possible(self) -> range:
        """The numbers that are still possible after the answers so far."""
        return possible(range(self.low, self.high + 1), self._guesses)

    def _answer(self, number: int | None) -> Answer:
        if number is None:
            return "bad"
        if number == self._number:
            return "found"
        return "higher" if self._number > number else "lower"


def possible(numbers: range, guesses: Sequence[Guess]) -> range:
    """The numbers that are still possible after the answers to these guesses."""
    first, last = numbers[0], numbers[-1]
    for guess in guesses:
        if guess.number is None:
            continue
        if guess.answer == "higher":
            first = max(first, guess.number + 1)
        elif guess.answer == "lower":
            last = min(last, guess.number - 1)
        else:
            first = last = guess.number
    return range(first, last + 1)


class Texts(Protocol):
    """All texts about an attempt, and the reading of the policy's text."""

    def instructions(self, game: Game) -> str: ...
    def opening(self, game: Game) -> str: ...
    def read(self, text: str) -> int | None: ...
    def answer(self, game: Game, guess: Guess) -> str: ...
    def trace(self, game: Game) -> str: ...
    def feedback(self, game: Game) -> str: ...


class ProseTexts:
    """All texts of an attempt, as sentences."""

    def instructions(self, game: Game) -> str:
        return (
            "You are to find a number by guessing. After each wrong guess you are told whether the number is "
            f"higher or lower. You have {game.max_guesses} guesses. You may think first; the last number in "
            "square brackets counts."
        )

    def opening(self, game: Game) -> str:
        return (
            f"The number is between {game.low} and {game.high}, both included.\n"
            f"{_remaining(game)} Answer with one number in square brackets, such as [{game.low}]."
        )

    def read(self, text: str) -> int | None:
        found = _BRACKETED.findall(text)
        return int(found[-1]) if found else None

    def answer(self, game: Game, guess: Guess) -> str:
        return f"{_ANSWERS[guess.answer]} {_remaining(game)}"

    def trace(self, game: Game) -> str:
        lines = [f"Between {game.low} and {game.high}."]
        for place, guess in enumerate(game.guesses, start=1):
            said = "no number" if guess.number is None else str(guess.number)
            lines.append(f"Guess {place}: {said}. {_ANSWERS[guess.answer]}")
        return "\n".join(lines)

    def feedback(self, game: Game) -> str:
        used = len(game.guesses)
        if game.found:
            return f"The number was found with guess {used} of {game.max_guesses}."
        return f"The number was not found in {used} guesses."


def _remaining(game: Game) -> str:
    left = game.max_guesses - len(game.guesses)
    return f"{left} guess{'' if left == 1 else 'es'} left."
