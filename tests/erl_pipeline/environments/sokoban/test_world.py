from __future__ import annotations

from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.world import Symbols, hidden_permutation, world_of_task


def test_named_actions_move_where_they_say() -> None:
    world = world_of_task(SokobanConfig(format="prose", actions="named"), 0, "task")
    assert world.actions == {"up": "up", "right": "right", "down": "down", "left": "left"}


def test_a_hidden_world_is_one_for_all_tasks_of_a_run() -> None:
    worlds = [world_of_task(SokobanConfig(), 0, f"task-{number}").actions for number in range(5)]
    assert worlds == [{"p": "up", "q": "left", "r": "down", "s": "right"}] * 5


def test_neighbouring_seeds_give_different_worlds_and_world_seed_wins() -> None:
    assert len({hidden_permutation(seed) for seed in range(100, 124)}) == 24
    fixed = SokobanConfig(world_seed=7)
    assert world_of_task(fixed, 0, "task") == world_of_task(SokobanConfig(), 7, "task")


def test_per_task_permutations_differ_between_tasks_and_repeat_for_one() -> None:
    config = SokobanConfig(actions="per_task", permute_symbols=True)
    worlds = [world_of_task(config, 0, f"task-{number}") for number in range(20)]
    assert len({tuple(world.actions.items()) for world in worlds}) > 10
    assert len({world.symbols for world in worlds}) > 10
    assert world_of_task(config, 0, "task-3") == worlds[3]


def test_every_kind_of_cell_has_a_symbol() -> None:
    board = Board(("#@$.* ", "#     "))
    symbols = Symbols(*"AaBbCDE")
    assert "".join(symbols.of_cell(board, board.start, cell) for cell in range(6)) == "EABCbD"
    on_goal = Board(("+$",))
    assert symbols.of_cell(on_goal, on_goal.start, 0) == "a"
