from __future__ import annotations

import json
from pathlib import Path

import pytest

from erl_pipeline.environments.sokoban import ENVIRONMENT
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tasks import (
    held_out_tasks,
    shape_key,
    tasks_from_file,
    training_boards,
    training_tasks,
)
from storage.errors import InputError

ROW = ["#####", "#@$.#", "#####"]


def write_tasks(path: Path, *boards: tuple[list[str], int]) -> Path:
    lines = [
        json.dumps({"task_id": f"task-{number}", "board": board, "max_steps": max_steps})
        for number, (board, max_steps) in enumerate(boards)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_task_carries_its_board_and_its_world() -> None:
    task = training_tasks(SokobanConfig(training_boards=1, rows=(6, 6)), seed=0)[0]
    assert (task.task_id, task.task_type) == ("sokoban-training-0-00000", "sokoban-6x6")
    assert task.payload["actions"] == {"p": "up", "q": "left", "r": "down", "s": "right"}
    assert "".join(task.payload["symbols"].values()) == "AaBbCDE"
    assert task.payload["max_steps"] == 8
    assert json.loads(json.dumps(task.payload)) == task.payload


def test_runs_with_other_seeds_share_their_boards_and_differ_in_the_world() -> None:
    config = SokobanConfig(training_boards=5)
    first, second = training_tasks(config, 0), training_tasks(config, 1)
    assert [task.payload["board"] for task in first] == [task.payload["board"] for task in second]
    assert first[0].payload["actions"] != second[0].payload["actions"]


def test_the_same_board_is_the_same_problem_in_any_world_and_however_its_floor_is_written(
    tmp_path: Path,
) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (["@$.", "---"], 8), (["@$.", "   "], 6))
    config = SokobanConfig(format="prose", actions="per_task")
    first, second = tasks_from_file(config, 0, path)
    assert ENVIRONMENT.splits.task_key(first.payload) == ENVIRONMENT.splits.task_key(second.payload)
    assert isinstance(ENVIRONMENT.splits.task_key({}), str)


def test_held_out_boards_avoid_the_boards_of_a_task_file(tmp_path: Path) -> None:
    generated = held_out_tasks(SokobanConfig(), 0, 3)
    path = write_tasks(tmp_path / "tasks.jsonl", (list(generated[0].payload["board"]), 8))
    config = SokobanConfig(task_file=str(path))
    assert [task.payload["board"] for task in training_tasks(config, 0)] == [generated[0].payload["board"]]
    assert [task.payload["board"] for task in held_out_tasks(config, 0, 2)] == [
        task.payload["board"] for task in generated[1:]
    ]
    assert ENVIRONMENT.dependencies.files(config) == {"task_file": path}


def test_held_out_boards_come_from_a_file_in_its_order(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "held_out.jsonl", (ROW, 8), (["#####", "#.$@#", "#####"], 8))
    config = SokobanConfig(held_out_file=str(path))
    assert [task.task_id for task in held_out_tasks(config, 0, 1)] == ["task-0"]
    with pytest.raises(InputError, match=r"held_out.jsonl holds 2 tasks, and 3 are asked for"):
        held_out_tasks(config, 0, 3)
    assert ENVIRONMENT.dependencies.files(config) == {"held_out_file": path}


def test_there_are_test_tasks_where_they_are_asked_for() -> None:
    assert ENVIRONMENT.splits.test_tasks(SokobanConfig(), 0) == []
    tasks = ENVIRONMENT.splits.test_tasks(SokobanConfig(test_boards=2), 0)
    assert [task.task_id for task in tasks] == ["sokoban-test-0-00000", "sokoban-test-0-00001"]


@pytest.mark.parametrize(
    ("board", "max_steps", "message"),
    [
        ([*ROW, "#" * 5, "#" * 5, "#" * 5, "#" * 5], 8, r"the board is 7x5, but .* boards of at most 6x6"),
        (["@$."], 8, "needs a board with walls all around"),
        (["######", "#@$. #", "# $. #", "######"], 8, r"the board has 2 boxes, but .*: \[1, 1\] shows 1"),
        (ROW, 9, "max_steps is 9, but .* no more than environment.max_steps: 8"),
    ],
)
def test_compact_refuses_what_its_prompts_do_not_hold(
    tmp_path: Path, board: list[str], max_steps: int, message: str
) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (ROW, 8), (board, max_steps))
    with pytest.raises(InputError, match=f"tasks.jsonl, task task-1: .*{message}"):
        tasks_from_file(SokobanConfig(rows=(5, 6)), 0, path)


def test_prose_takes_boards_of_any_size_with_their_own_step_limit(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", (["@$."], 2), (["@$. ", " $. "], 20))
    tasks = tasks_from_file(SokobanConfig(format="prose", actions="named"), 0, path)
    assert [(task.task_type, task.payload["max_steps"]) for task in tasks] == [
        ("sokoban-1x3", 2),
        ("sokoban-2x4", 20),
    ]


def test_the_boards_of_a_held_out_file_and_their_twins_are_not_generated_for_training(tmp_path: Path) -> None:
    without = SokobanConfig(rows=(5, 6), training_boards=40)
    boards = [task.payload["board"] for task in training_tasks(without, 0)]
    mirrored = [row[::-1] for row in boards[7]]
    path = write_tasks(tmp_path / "held.jsonl", (boards[3], 8), (mirrored, 8))
    config = without.model_copy(update={"held_out_file": str(path)})
    tasks, held_out = training_tasks(config, 0), held_out_tasks(config, 0, 2)
    shapes = {shape_key(task.payload) for task in held_out}
    left = [board for board in boards if shape_key({"board": board}) not in shapes]
    assert boards[3] not in left
    assert boards[7] not in left
    assert [task.payload["board"] for task in tasks][: len(left)] == left
    # Demonstrations of the tiny policy show the same boards.
    assert [list(board.rows) for board in training_boards(config)] == [t.payload["board"] for t in tasks]


def test_what_of_the_files_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    levels = tmp_path / "levels.txt"
    levels.write_text("; 0\n@$.\n\n; 1\n@$    .\n\n; 2\n@ $.\n")
    held = write_tasks(tmp_path / "held.jsonl", (["@", "$", "."], 8))
    config = SokobanConfig(
        format="prose", solution_length=(1, 3), max_steps=3, task_file=str(levels), held_out_file=str(held)
    )
    assert [task.task_id for task in training_tasks(config, 0)] == ["levels-2"]
    assert ENVIRONMENT.splits.left_out(config) == [
        f"1 of 3 levels of task file {levels} are left out: they need more than environment.max_steps: 3 "
        "moves (levels-1)",
        f"1 of 2 boards of task file {levels} are left out: each is a board of {held} turned or mirrored "
        "(levels-0); environment.twins: any_split would keep them",
    ]
