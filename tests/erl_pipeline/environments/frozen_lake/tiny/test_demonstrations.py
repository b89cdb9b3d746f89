from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.generation import generate_boards
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.steps import Action, Step
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import demonstrate, seen_moves, slots_text
from erl_pipeline.environments.frozen_lake.tiny.parts import context_length
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
