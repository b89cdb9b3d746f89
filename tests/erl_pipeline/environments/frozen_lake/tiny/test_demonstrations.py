from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.generation import generate_boards
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.steps import Action, Step
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import demonstrate, seen_moves, slots_text
from erl_pipeline.environments.frozen_lake.tiny.parts import context_length, retry_tokens
from erl_pipeline.environments.tiny_parts import Demonstration
from erl_pipeline.policies.tiny.cold_start import to_words

ENVIRONMENT = FrozenLakeConfig()


def many(
    count: int, environment: FrozenLakeConfig = ENVIRONMENT, **settings: float
) -> list[Sequence[Demonstration]]:
    boards = generate_boards(environment, "training", 100)
    stream = random.Random(0)
    return [demonstrate(stream, environment, ColdStartConfig(**settings), boards) for _ in range(count)]  # type: ignore[arg-type]


def test_failed_attempts_are_followed_by_a_reflection_and_all_fits_the_context() -> None:
    room = context_length(ENVIRONMENT)
    kinds = set()
    for demonstrations in many(200):
        kinds.add(len(demonstrations))
        for reflection in demonstrations[1:]:
            # <bos> <user>, 16 cells, "trace", 6 steps of 4 words, then how the attempt ended.
            assert to_words(reflection)[0][2 + 16 + 1 + 24] in {"fell", "lost"}
        assert all(len(to_words(shown)[0]) <= room for shown in demonstrations)
    assert kinds == {1, 2}


@pytest.mark.parametrize(("share", "expected"), [(1.0, {"? ? ? ?"}), (0.0, set())])
def test_blank_notes_come_as_often_as_asked(share: float, expected: set[str]) -> None:
    slots = {" ".join(to_words(shown[0])[0][19:23]) for shown in many(50, blank_notes=share)}
    assert slots & {"? ? ? ?"} == expected


def test_plans_are_demonstrated_in_one_turn() -> None:
    environment = FrozenLakeConfig(action_mode="plan")
    for demonstrations in many(50, environment):
        assert [message["role"] for message in demonstrations[0]].count("assistant") == 1


def test_slots_name_the_word_of_each_direction() -> None:
    assert slots_text({"right": "c", "left": "a"}) == "? c ? a"


def test_only_moves_that_were_seen_are_known() -> None:
    steps = [
        Step(Action("a", "up"), "left", 3),
        Step(Action("b", "up"), "bump", 3),
        Step(None, "bad", 3),
        Step(Action("c", "up"), "fell", 7),
    ]
    assert seen_moves(steps) == {"left": "a"}


def test_retries_are_demonstrated_only_where_they_are_asked_for() -> None:
    assert {len(shown) for shown in many(100)} == {1, 2}
    assert {len(shown) for shown in many(100, retries=1.0)} == {1, 3}


def test_a_demonstrated_retry_is_told_of_the_failed_attempt_and_knows_what_it_showed() -> None:
    room = context_length(ENVIRONMENT) + retry_tokens(ENVIRONMENT)
    told = set()
    for shown in many(200, retries=1.0):
        if len(shown) == 1:
            continue
        reflection, retry = to_words(shown[1])[0], to_words(shown[2])[0]
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
