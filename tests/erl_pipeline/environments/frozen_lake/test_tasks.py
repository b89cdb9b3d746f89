from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.generation import generate_boards
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import (
    held_out_tasks,
    tasks_from_file,
    training_boards,
    training_tasks,
)
from erl_pipeline.environments.frozen_lake.tasks import (
    test_tasks as tasks_of_the_test,
)
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.tasks.held_out import KeptApart, refuse_held_out
from storage.errors import InputError


def test_a_task_carries_its_board_and_its_world() -> None:
    task = training_tasks(FrozenLakeConfig(training_boards=1), seed=0)[0]
    assert (task.task_id, task.task_type) == ("frozen_lake-training-0-00000", "frozen_lake-4x4")
    assert task.payload["actions"] == {"a": "up", "b": "left", "c": "down", "d": "right"}
    assert task.payload["symbols"] == {"player": "@", "frozen": "#", "hole": "$", "goal": "&"}
    assert task.payload["max_steps"] == 6
    assert json.loads(json.dumps(task.payload)) == task.payload


def test_runs_with_other_seeds_share_their_boards_and_differ_in_the_world() -> None:
    config = FrozenLakeConfig(training_boards=5)
    first, second = training_tasks(config, 0), training_tasks(config, 1)
    assert [task.payload["board"] for task in first] == [task.payload["board"] for task in second]
    assert first[0].payload["actions"] != second[0].payload["actions"]


def write_tasks(path: Path, *boards: tuple[list[str], int]) -> Path:
    lines = [
        json.dumps({"task_id": f"task-{number}", "board": board, "max_steps": max_steps})
        for number, (board, max_steps) in enumerate(boards)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_held_out_boards_avoid_the_boards_of_a_task_file(tmp_path: Path) -> None:
    generated = held_out_tasks(FrozenLakeConfig(), 0, 3)
    path = write_tasks(tmp_path / "tasks.jsonl", (list(generated[0].payload["board"]), 6))
    config = FrozenLakeConfig(task_file=str(path))
    assert [task.payload["board"] for task in training_tasks(config, 0)] == [generated[0].payload["board"]]
    assert [task.payload["board"] for task in held_out_tasks(config, 0, 2)] == [
        task.payload["board"] for task in generated[1:]
    ]


def test_compact_refuses_boards_for_which_its_frame_has_no_room(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (["SFG"], 6), (["SFFFG"], 6))
    with pytest.raises(
        InputError, match=r"task task-1: the board is 1x5, but .* shows boards of at most 4x4"
    ):
        tasks_from_file(FrozenLakeConfig(), 0, path)


def test_held_out_boards_may_come_from_a_file(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "held_out.jsonl", (["SFG"], 6), (["SF", "FG"], 6), (["SG"], 6))
    config = FrozenLakeConfig(held_out_file=str(path))
    assert [task.task_id for task in held_out_tasks(config, 0, 2)] == ["task-0", "task-1"]
    with pytest.raises(InputError, match=r"held_out.jsonl holds 3 tasks, and 4 are asked for"):
        held_out_tasks(config, 0, 4)


def test_compact_refuses_more_steps_than_its_prompts_hold(tmp_path: Path) -> None:
    board = generate_boards(FrozenLakeConfig(), "training", 1)[0]
    path = write_tasks(tmp_path / "tasks.jsonl", (list(board.rows), 8))
    with pytest.raises(
        InputError, match=r"task task-0: max_steps is 8, but .* no more than environment.max_steps: 6"
    ):
        tasks_from_file(FrozenLakeConfig(), 0, path)


def test_prose_takes_boards_of_any_size_with_their_own_step_limit(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (["SFG"], 2), (["SF", "FG"], 8))
    tasks = tasks_from_file(FrozenLakeConfig(format="prose", actions="named"), 0, path)
    assert [(task.task_type, task.payload["max_steps"]) for task in tasks] == [
        ("frozen_lake-1x3", 2),
        ("frozen_lake-2x2", 8),
    ]


def turned(rows: list[str]) -> list[str]:
    """A board turned clockwise."""
    return ["".join(column) for column in zip(*reversed(rows), strict=True)]


def test_the_boards_of_a_held_out_file_and_their_twins_are_not_generated_for_training(tmp_path: Path) -> None:
    without = FrozenLakeConfig(training_boards=40)
    boards = [task.payload["board"] for task in training_tasks(without, 0)]
    path = write_tasks(tmp_path / "held.jsonl", (boards[3], 6), (turned(boards[7]), 6))
    config = without.model_copy(update={"held_out_file": str(path)})
    tasks, held_out = training_tasks(config, 0), held_out_tasks(config, 0, 2)
    refuse_held_out(tasks, KeptApart(ENVIRONMENT, config, 0, held_out))
    left = [board for board in boards if Board(tuple(board)).shape not in shapes(held_out)]
    assert boards[3] not in left
    assert boards[7] not in left
    assert [task.payload["board"] for task in tasks][: len(left)] == left
    assert len(tasks) == 40
    # Demonstrations of the tiny policy show the same boards.
    assert [list(board.rows) for board in training_boards(config)] == [t.payload["board"] for t in tasks]


def test_test_boards_are_not_in_a_held_out_file(tmp_path: Path) -> None:
    without = FrozenLakeConfig(test_boards=4)
    boards = [task.payload["board"] for task in tasks_of_the_test(without, 0)]
    path = write_tasks(tmp_path / "held.jsonl", (boards[0], 6))
    config = without.model_copy(update={"held_out_file": str(path)})
    assert [task.payload["board"] for task in tasks_of_the_test(config, 0)][:3] == boards[1:]


def test_boards_of_a_training_file_whose_twin_is_held_out_are_left_out_and_named(tmp_path: Path) -> None:
    train = write_tasks(tmp_path / "train.jsonl", (["SFG"], 6), (["S", "F", "G"], 6), (["SF", "FG"], 6))
    held = write_tasks(tmp_path / "held.jsonl", (["GFS"], 6))
    config = FrozenLakeConfig(format="prose", task_file=str(train), held_out_file=str(held))
    assert [task.task_id for task in training_tasks(config, 0)] == ["task-2"]
    assert ENVIRONMENT.splits.left_out(config) == [
        f"2 of 3 boards of task file {train} are left out: each is a board of {held} turned or mirrored "
        "(task-0, task-1); environment.twins: any_split would keep them"
    ]
    kept = config.model_copy(update={"twins": "any_split"})
    assert [task.task_id for task in training_tasks(kept, 0)] == ["task-0", "task-1", "task-2"]
    assert ENVIRONMENT.splits.left_out(kept) == []
    assert ENVIRONMENT.splits.left_out(FrozenLakeConfig()) == []


def test_a_training_file_of_nothing_but_twins_is_refused(tmp_path: Path) -> None:
    train = write_tasks(tmp_path / "train.jsonl", (["SFG"], 6))
    held = write_tasks(tmp_path / "held.jsonl", (["GFS"], 6))
    config = FrozenLakeConfig(format="prose", task_file=str(train), held_out_file=str(held))
    with pytest.raises(InputError, match=r"train.jsonl holds no training board: each is a board of"):
        training_tasks(config, 0)


def test_an_equal_board_in_both_files_is_still_refused(tmp_path: Path) -> None:
    train = write_tasks(tmp_path / "train.jsonl", (["SFG"], 6))
    held = write_tasks(tmp_path / "held.jsonl", (["SFG"], 6))
    config = FrozenLakeConfig(format="prose", task_file=str(train), held_out_file=str(held))
    with pytest.raises(InputError, match="training task task-0 is the held-out task task-0"):
        refuse_held_out(
            training_tasks(config, 0), KeptApart(ENVIRONMENT, config, 0, held_out_tasks(config, 0, 1))
        )


def shapes(tasks: Sequence[Task]) -> set[tuple[str, ...]]:
    return {Board(tuple(task.payload["board"])).shape for task in tasks}
