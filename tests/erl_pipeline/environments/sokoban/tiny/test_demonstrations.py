from __future__ import annotations

import random

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS
from erl_pipeline.environments.sokoban.board import State
from erl_pipeline.environments.sokoban.generation import generate_boards
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.steps import Action, Step
from erl_pipeline.environments.sokoban.tiny.demonstrations import (
    DemonstratedEpisode,
    demonstrate,
    seen_moves,
)
from erl_pipeline.policies.tiny.conversations import to_words

ENVIRONMENT = SokobanConfig(rows=(5, 6), solution_length=(3, 6))
NOTES = 2 + 16 + 3 + 1  # <bos> <user>, 16 cells, "start" with two places, "notes"
STATE = State(3, (5,))


def episodes(count: int, **settings: float) -> list[DemonstratedEpisode]:
    boards = generate_boards(ENVIRONMENT, "training", 100)
    stream = random.Random(0)
    config = ColdStartConfig.model_validate({"reflections_per_failure": 2, **settings})
    return [demonstrate(stream, ENVIRONMENT, config, boards) for _ in range(count)]


def test_failed_attempts_are_followed_by_two_reflections() -> None:
    shown = episodes(200)
    assert {len(episode.conversations) for episode in shown} == {1, 3}
    for episode in shown:
        for reflection in episode.reflections:
            # <bos> <user>, 16 cells, 3 words of places, "trace", 8 steps of 5 words, then how it ended.
            assert to_words(reflection)[0][2 + 16 + 3 + 1 + 40] in {"stuck", "lost"}


@pytest.mark.parametrize(("share", "expected"), [(1.0, {"? ? ? ?"}), (0.0, set())])
def test_blank_notes_come_as_often_as_asked(share: float, expected: set[str]) -> None:
    shown = episodes(50, blank_notes=share)
    slots = {" ".join(to_words(episode.attempt)[0][NOTES : NOTES + 4]) for episode in shown}
    assert slots & {"? ? ? ?"} == expected


def test_what_an_attempt_has_shown_is_asked_of_its_reflections() -> None:
    for episode in episodes(100):
        for question in episode.questions:
            said = question.demonstration[-1]["content"].split()
            assert [said[place] for place in question.places] == [
                episode.seen[direction] for direction in DIRECTIONS if direction in episode.seen
            ]
        assert len(episode.questions) == (len(episode.reflections) if episode.seen else 0)


def test_only_moves_that_were_seen_are_known() -> None:
    steps = [
        Step(Action("p", "up"), "left", STATE),
        Step(Action("q", "up"), "wall", STATE),
        Step(Action("r", "up"), "box_wall", STATE),
        Step(None, "bad", STATE),
        Step(Action("s", "up"), "down", STATE, pushed=True),
    ]
    assert seen_moves(steps) == {"left": "p", "down": "s"}


def test_retries_are_demonstrated_only_where_they_are_asked_for() -> None:
    assert {episode.retry for episode in episodes(50)} == {None}
    assert all((episode.retry is None) == (not episode.reflections) for episode in episodes(50, retries=1.0))


def test_a_demonstrated_retry_is_told_of_the_failed_attempt() -> None:
    told = set()
    for episode in episodes(200, retries=1.0):
        if episode.retry is None:
            continue
        reflection, retry = to_words(episode.reflections[0])[0], to_words(episode.retry)[0]
        # After the slots: "trace", 8 steps of 5 words, and the ending, as in the reflection's prompt.
        assert retry[NOTES + 4 : NOTES + 46] == reflection[NOTES - 1 : NOTES + 41]
        slots = retry[NOTES : NOTES + 4]
        assert slots in (["?"] * 4, reflection[-5:-1])
        told.add(slots == ["?"] * 4)
    assert told == {True, False}
