from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.game import game_of
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig, RealmConfig
from erl_pipeline.environments.frozen_lake.tasks import (
    TASKS,
    held_out_realms,
    realm_permutation,
    realm_task,
)
from erl_pipeline.environments.frozen_lake.tiny import TINY
from erl_pipeline.environments.grid_games.tasks import BoardTask
from erl_pipeline.environments.interface import Task

REALMS = FrozenLakeConfig(
    actions="realms", realms=RealmConfig(training=3, held_out=2), training_boards=7, board_seed=5
)


def realms_of(tasks: list[Task]) -> list[str]:
    return [task.task_type.removeprefix("frozen_lake-") for task in tasks]


def actions_by_realm(seed: int, config: FrozenLakeConfig = REALMS) -> dict[str, tuple[str, ...]]:
    """The directions of a, b, c and d in each of the five realms."""
    tasks = [*TASKS.training_tasks(config, seed), *held_out(seed, config)]
    return {task.payload["realm"]: tuple(task.payload["actions"].values()) for task in tasks}


def held_out(seed: int = 0, config: FrozenLakeConfig = REALMS) -> list[Task]:
    """A task of each held-out realm."""
    realms = held_out_realms(config)
    boards = TASKS.held_out_boards(config, len(realms))
    return [
        realm_task(config, seed, BoardTask(f"task-{realm}", board, 6), realm)
        for realm, board in zip(realms, boards, strict=True)
    ]


def test_the_realms_of_training_take_turns_and_are_the_task_type() -> None:
    assert realms_of(TASKS.training_tasks(REALMS, 0)) == ["r0", "r1", "r2", "r0", "r1", "r2", "r0"]
    assert realms_of(TASKS.held_out_tasks(REALMS, 0, 4)) == ["r0", "r1", "r2", "r0"]


def test_each_realm_has_a_permutation_of_its_own_that_the_seed_chooses() -> None:
    assert len({realm_permutation(7, realm) for realm in range(24)}) == 24
    first, second = actions_by_realm(0), actions_by_realm(1)
    assert list(first) == ["r0", "r1", "r2", "r3", "r4"]
    assert len(set(first.values())) == 5
    assert first != second
    fixed = REALMS.model_copy(update={"world_seed": 1})
    assert actions_by_realm(0, fixed) == second


def test_the_realm_stands_before_the_board_and_once() -> None:
    task = held_out()[0]
    compact = game_of(REALMS, task).reset().split()
    assert compact[0] == "r3"
    assert len(compact) == 17
    prose = REALMS.model_copy(update={"format": "prose"})
    game = game_of(prose, task)
    assert game.reset().startswith("Realm: r3\n")
    game.step("[a]")
    assert game.trace().startswith("Realm: r3\nStart:\n")
    assert game.trace().count("Realm") == 1


def test_the_tiny_policy_knows_the_names_of_all_realms_and_has_room_for_one() -> None:
    assert set(TINY.vocabulary(REALMS)) - set(TINY.vocabulary(FrozenLakeConfig())) == {
        "r0",
        "r1",
        "r2",
        "r3",
        "r4",
    }
    assert TINY.context_length(REALMS) == TINY.context_length(FrozenLakeConfig()) + 1


def test_a_word_that_names_a_realm_is_no_action() -> None:
    config = REALMS.model_copy(update={"action_words": ("a", "b", "c", "r4")})
    with pytest.raises(Exception, match="'r4' has another meaning"):
        ENVIRONMENT.tiny.parts(config)


def test_there_are_sixteen_and_eight_realms_where_nothing_is_said_of_them() -> None:
    assert FrozenLakeConfig(actions="realms").realms == RealmConfig(training=16, held_out=8)
    assert FrozenLakeConfig().realms is None
    assert list(held_out_realms(FrozenLakeConfig())) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"actions": "realms", "realms": {"training": 20, "held_out": 5}},
            "allowed are 24 realms in all",
        ),
        ({"realms": {}}, "realms: only actions: realms takes it; allowed with actions: hidden_world is null"),
    ],
)
def test_impossible_realms_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FrozenLakeConfig.model_validate(values)
