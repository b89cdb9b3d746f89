"""FrozenLake's parts for the cold start of a tiny policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.compact import ENDINGS, OUTCOMES, PADDING, STEP_WORDS, cell_word
from erl_pipeline.environments.frozen_lake.realms import realm_words
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import training_boards
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import demonstrate
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS
from erl_pipeline.environments.hidden_words.prompts import FIELD_WORDS, SLOTS, UNKNOWN
from erl_pipeline.environments.tiny_parts import Demonstration, Examination, Question, TinyParts
from storage.errors import ConfigError

_EXAMINED_EPISODES = 256
_WORDS_PER_TURN = 7  # aim, action, <end>, <user>, outcome, cell, <assistant>


def tiny_parts(settings: FrozenLakeConfig) -> TinyParts | None:
    """The parts for these settings; None for formats other than `compact`.

    Raises `ConfigError` where a chosen symbol or action word is a word of the format itself.
    """
    if settings.format != "compact":
        return None

    @cache
    def boards() -> list[Board]:
        return training_boards(settings)

    def demonstrations(
        stream: random.Random, cold_start: ColdStartConfig
    ) -> Iterator[Sequence[Demonstration]]:
        while True:
            yield demonstrate(stream, settings, cold_start, boards()).conversations

    def questions(stream: random.Random, cold_start: ColdStartConfig) -> list[Question]:
        episodes = (demonstrate(stream, settings, cold_start, boards()) for _ in range(_EXAMINED_EPISODES))
        return [question for episode in episodes for question in episode.questions]

    return TinyParts(
        words=vocabulary(settings),
        context_length=context_length(settings),
        demonstrations=demonstrations,
        examinations=[
            Examination("seen_slots_right", questions, "reflections may keep what the attempt has refuted")
        ],
        retry_tokens=retry_tokens(settings),
    )


def vocabulary(settings: FrozenLakeConfig) -> tuple[str, ...]:
    """Every word of the compact format.

    Raises `ConfigError` where a chosen symbol or action word is a word of the format itself.
    """
    height, width = settings.frame
    cells = [cell_word(place) for place in range(height * width)]
    fixed = [PADDING, UNKNOWN, *FIELD_WORDS, *DIRECTIONS]
    fixed += [word for word in OUTCOMES if word not in ENDINGS]
    fixed += [*ENDINGS, *cells, *realm_words(settings)]
    chosen = [*settings.symbols, *settings.action_words]
    for word in chosen:
        if word in fixed or chosen.count(word) > 1:
            raise ConfigError(
                f"environment.symbols and environment.action_words: {word!r} has another meaning in "
                "format: compact; allowed are words that it does not use"
            )
    return (*fixed, *chosen)


def context_length(settings: FrozenLakeConfig) -> int:
    """Tokens of the longest sequence that is trained or sampled, with room for ill-formed turns."""
    height, width = settings.frame
    cells = height * width + (settings.realms is not None)
    attempt = cells + SLOTS + 4 + _WORDS_PER_TURN * settings.max_steps
    reflection = cells + STEP_WORDS * settings.max_steps + 2 * SLOTS + 8
    spare = 6 * settings.max_steps
    return max(attempt + spare, reflection + spare)


def retry_tokens(settings: FrozenLakeConfig) -> int:
    """Tokens of the failed attempt in the prompt of the next: "trace", its steps, and how it ended."""
    return STEP_WORDS * settings.max_steps + 2
