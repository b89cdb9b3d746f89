from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.generation import generate_boards
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.steps import Action, Step
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import (
    DemonstratedEpisode,
    demonstrate,
    seen_moves,
)
from erl_pipeline.environments.frozen_lake.tiny.parts import context_length, retry_tokens
from erl_pipeline.environments.tiny_parts import Demonstration
from erl_pipeline.policies.tiny.conversations import to_words

ENVIRONMENT = FrozenLakeConfig()


def episodes(
    count: int, environment: FrozenLakeConfig = ENVIRONMENT, **settings: float
) -> list[DemonstratedEpisode]:
    boards = generate_boards(environment, "training", 100)
    stream = random.Random(0)
    config = ColdStartConfig.model_validate({"reflections_per_failure": 2, **settings})
    return [demonstrate(stream, environment, config, boards) for _ in range(count)]


def many(
    count: int, environment: FrozenLakeConfig = ENVIRONMENT, **settings: float
) -> list[Sequence[Demonstration]]:
    return [episode.conversations for episode in episodes(count, environment, **settings)]


def test_failed_attempts_are_followed_by_two_reflections_and_all_fits_the_context() -> None:
    room = context_length(ENVIRONMENT)
    kinds = set()
    for demonstrations in many(200):
        kinds.add(len(demonstrations))
        for reflection in demonstrations[1:]:
            # <bos> <user>, 16 cells, "trace", 6 steps of 4 words, then how the attempt ended.
            assert to_words(reflection)[0][2 + 16 + 1 + 24] in {"fell", "lost"}
        assert all(len(to_words(shown)[0]) <= room for shown in demonstrations)
    assert kinds == {1, 3}


@pytest.mark.parametrize(("share", "expected"), [(1.0, {"? ? ? ?"}), (0.0, set())])
def test_blank_notes_come_as_often_as_asked(share: float, expected: set[str]) -> None:
    slots = {" ".join(to_words(shown[0])[0][19:23]) for shown in many(50, blank_notes=share)}
    assert slots & {"? ? ? ?"} == expected


def test_plans_are_demonstrated_in_one_turn() -> None:
    environment = FrozenLakeConfig(action_mode="plan")
    for demonstrations in many(50, environment):
        assert [message["role"] for message in demonstrations[0]].count("assistant") == 1


def test_reflections_on_one_attempt_differ_in_what_is_remembered() -> None:
    remembered = [
        {to_words(reflection)[0][-11:-7] == ["?"] * 4 for reflection in episode.reflections}
        for episode in episodes(100)
        if episode.reflections
    ]
    assert {len(kinds) for kinds in remembered} == {1, 2}  # both blank or both not, and one of each


def test_what_an_attempt_has_shown_is_asked_of_its_reflections() -> None:
    for episode in episodes(100):
        words = [list(question.demonstration[-1]["content"].split()) for question in episode.questions]
        for question, said in zip(episode.questions, words, strict=True):
            # up, right, down, left
            assert [said[place] for place in question.places] == [
                episode.seen[d] for d in ("up", "right", "down", "left") if d in episode.seen
            ]
        assert len(words) == (len(episode.reflections) if episode.seen else 0)


def test_a_realm_is_named_and_tells_nothing() -> None:
    """Any realm occurs with any world, so that its name alone says nothing about the action words."""
    environment = FrozenLakeConfig(actions="realms")
    names = {shown[0][0]["content"].split()[0] for shown in many(500, environment)}
    assert names == {f"r{number}" for number in range(24)}


def test_only_moves_that_were_seen_are_known() -> None:
    steps = [
        Step(Action("a", "up"), "left", 3),
        Step(Action("b", "up"), "bump", 3),
        Step(None, "bad", 3),
        Step(Action("c", "up"), "fell", 7),
    ]
    assert seen_moves(steps) == {"left": "a"}


def test_retries_are_demonstrated_only_where_they_are_asked_for() -> None:
    assert {episode.retry for episode in episodes(100)} == {None}
    assert all((episode.retry is None) == (not episode.reflections) for episode in episodes(100, retries=1.0))


def test_a_demonstrated_retry_is_told_of_the_failed_attempt_and_knows_what_it_showed() -> None:
    room = context_length(ENVIRONMENT) + retry_tokens(ENVIRONMENT)
    told = set()
    for episode in episodes(200, retries=1.0):
        if episode.retry is None:
            continue
        reflection, retry = to_words(episode.reflections[0])[0], to_words(episode.retry)[0]
        # <bos> <user>, 16 cells, notes and 4 slots, then the trace of the reflection's prompt and its end.
        assert retry[23:49] == reflection[18:44]
        slots = retry[19:23]
        assert slots in (["?"] * 4, reflection[-5:-1])
        told.add(slots == ["?"] * 4)
        trace = reflection[19:43]
        seen = {outcome: word for word, outcome in zip(trace[1::4], trace[2::4], strict=True)}
        aims = retry[retry.index("<assistant>") + 1], retry[retry.index("<assistant>") + 2]
        assert aims[1] == seen.get(aims[0], aims[1])
        assert len(retry) <= room
    assert told == {True, False}


def test_without_retries_the_other_demonstrations_are_as_before() -> None:
    assert many(20) == many(20, retries=0.0)
