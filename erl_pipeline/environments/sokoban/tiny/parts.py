"""Sokoban's parts for the cold start of a tiny policy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cache

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS
from erl_pipeline.environments.hidden_words.prompts import FIELD_WORDS, SLOTS, UNKNOWN
from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.compact import (
    ENDINGS,
    OUTCOMES,
    PADDING,
    START,
    cell_word,
    frame_of,
    step_words,
)
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import training_boards
from erl_pipeline.environments.sokoban.tiny.demonstrations import demonstrate
from erl_pipeline.environments.sokoban.tiny.planning import planning_questions
from erl_pipeline.environments.tiny_parts import Demonstration, Examination, Question, TinyParts
from storage.errors import ConfigError

_EXAMINED_EPISODES = 256
_EXAMINED_BOARDS = 256
_SPECIAL_TOKENS = 3  # of a turn: <end>, <user>, <assistant>
_SPARE_WORDS = 6  # for each turn that is ill-formed


def tiny_parts(settings: SokobanConfig) -> TinyParts | None:
    """The parts of these settings; None for `format: prose`.

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

    def plans(stream: random.Random, cold_start: ColdStartConfig) -> list[Question]:
        # Boards of another seed: hardly any of them is demonstrated.
        others = settings.model_copy(
            update={
                "board_seed": settings.board_seed + 1,
                "training_boards": min(_EXAMINED_BOARDS, settings.training_boards),
            }
        )
        return list(planning_questions(stream, settings, training_boards(others)))

    return TinyParts(
        words=vocabulary(settings),
        context_length=context_length(settings),
        demonstrations=demonstrations,
        examinations=[
            Examination("seen_slots_right", questions, "reflections may keep what the attempt has refuted"),
            Examination("best_moves_right", plans, "planning is not learned to the end"),
        ],
        retry_tokens=retry_tokens(settings),
    )


def vocabulary(settings: SokobanConfig) -> tuple[str, ...]:
    """Every word of the compact format.

    Raises `ConfigError` where a chosen symbol or action word is a word of the format itself.
    """
    fixed = [PADDING, UNKNOWN, *FIELD_WORDS, *DIRECTIONS, START, *OUTCOMES, *ENDINGS]
    fixed += [cell_word(cell) for cell in range(_cells(settings))]
    chosen = [*settings.symbols, *settings.action_words]
    for word in chosen:
        if word in fixed or chosen.count(word) > 1:
            raise ConfigError(
                f"environment.symbols and environment.action_words: {word!r} has another meaning in "
                "format: compact; allowed are words that it does not use"
            )
    return (*fixed, *chosen)


def context_length(settings: SokobanConfig) -> int:
    """Tokens of the longest sequence that is trained or sampled, with room for ill-formed turns."""
    boxes, steps = settings.boxes[1], settings.max_steps
    observation = _cells(settings) + 2 + boxes
    attempt = observation + SLOTS + 4 + (step_words(boxes) + _SPECIAL_TOKENS) * steps
    reflection = observation + step_words(boxes) * steps + 2 * SLOTS + 8
    return max(attempt, reflection) + _SPARE_WORDS * steps


def retry_tokens(settings: SokobanConfig) -> int:
    """Tokens of the failed attempt in the prompt of the next: "trace", its steps, and how it ended."""
    return step_words(settings.boxes[1]) * settings.max_steps + 2


def _cells(settings: SokobanConfig) -> int:
    rows, columns = frame_of(settings)
    return rows * columns
