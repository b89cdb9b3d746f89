from __future__ import annotations

from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.world import hidden_permutation, world_of_task


def test_named_actions_move_where_they_say() -> None:
    world = world_of_task(FrozenLakeConfig(format="prose", actions="named"), 0, "task")
    assert world.actions == {"up": "up", "right": "right", "down": "down", "left": "left"}


def test_a_hidden_world_is_one_for_all_tasks_of_a_run() -> None:
    config = FrozenLakeConfig()
    worlds = [world_of_task(config, 0, f"task-{number}").actions for number in range(5)]
    assert worlds == [{"a": "up", "b": "left", "c": "down", "d": "right"}] * 5


def test_neighbouring_seeds_give_different_worlds() -> None:
    assert len({hidden_permutation(seed) for seed in range(100, 124)}) == 24


def test_world_seed_wins_over_the_seed_of_the_run() -> None:
    fixed = FrozenLakeConfig(world_seed=7)
    assert world_of_task(fixed, 0, "task") == world_of_task(fixed, 1, "task")
    assert world_of_task(fixed, 0, "task") == world_of_task(FrozenLakeConfig(), 7, "task")


def test_per_task_permutations_differ_between_tasks_and_repeat_for_one() -> None:
    config = FrozenLakeConfig(actions="per_task", permute_symbols=True)
    worlds = [world_of_task(config, 0, f"task-{number}") for number in range(20)]
    assert len({tuple(world.actions.items()) for world in worlds}) > 10
    assert len({world.symbols for world in worlds}) > 10
    assert world_of_task(config, 0, "task-3") == worlds[3]


def test_word_for_inverts_the_actions() -> None:
    world = world_of_task(FrozenLakeConfig(), 0, "task")
    assert [world.word_for(direction) for direction in ("up", "right", "down", "left")] == [
        "a",
        "d",
        "c",
        "b",
    ]
