from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.environments.frozen_lake.game import FrozenLakeBoard, game_of
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import (
    TASKS,
    gold_answer,
    shortest_way,
)
from erl_pipeline.environments.grid_games.tasks import BoardTask

DETOUR = FrozenLakeBoard(("SFF", "HHF", "GFF"))


def test_the_way_goes_around_the_holes() -> None:
    assert shortest_way(DETOUR) == ["right", "right", "down", "down", "left", "left"]


@pytest.mark.parametrize(
    ("settings", "turns"),
    [
        (
            {"format": "prose", "actions": "named"},
            ["[right]", "[right]", "[down]", "[down]", "[left]", "[left]"],
        ),
        (
            {"format": "prose", "actions": "named", "action_mode": "plan"},
            ["[right right down down left left]"],
        ),
    ],
)
def test_it_is_said_as_the_game_reads_it(settings: dict[str, Any], turns: list[str]) -> None:
    config = FrozenLakeConfig(**settings)
    assert gold_answer(config, TASKS.task(BoardTask("t", DETOUR, 6), TASKS.world(config, 0, "t", 0))) == turns


def test_a_way_that_the_task_has_no_steps_for_is_no_answer() -> None:
    config = FrozenLakeConfig(format="prose")
    assert gold_answer(config, TASKS.task(BoardTask("t", DETOUR, 5), TASKS.world(config, 0, "t", 0))) is None


@pytest.mark.parametrize("mode", ["step", "plan"])
@pytest.mark.parametrize("actions", ["hidden_world", "per_task", "realms"])
@pytest.mark.parametrize("form", ["prose", "compact"])
def test_it_reaches_the_goal_in_hidden_words(form: str, actions: str, mode: str) -> None:
    config = FrozenLakeConfig(format=form, actions=actions, action_mode=mode, training_boards=8)
    for task in TASKS.held_out_tasks(config, 3, 8):
        game = game_of(config, task)
        game.reset()
        turns = gold_answer(config, task)
        assert turns is not None
        moved = [game.step(turn) for turn in turns]
        assert (moved[-1].reward, moved[-1].done) == (1.0, True)
