"""The training, held-out and test tasks of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erl_pipeline.environments.board_twins import is_generated_size, named, shape_of, without_twins
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.generation import Split, generate_boards, kept_apart, split_of
from erl_pipeline.environments.frozen_lake.realms import training_realms
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.task_file import BoardTask, read_task_file
from erl_pipeline.environments.frozen_lake.world import world_of_task
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.splits import FindSplit, KeptSplit
from storage.errors import InputError


def training_tasks(config: FrozenLakeConfig, seed: int) -> list[Task]:
    """The boards of `task_file`, or generated ones. `seed` is the run's seed and chooses the hidden world."""
    if config.task_file is None:
        return _as_tasks(config, seed, _generated(config, "training", training_boards(config)))
    path = Path(config.task_file)
    kept, twins = without_twins(_checked(config, path), _twins_of(config))
    if not kept:
        raise InputError(f"task file {path} holds no training board: {_are_twins(config, twins)}")
    return _as_tasks(config, seed, kept)


def training_boards(config: FrozenLakeConfig) -> list[Board]:
    """Generated training boards, which demonstrations show too; none is of `held_out_file`."""
    return generate_boards(config, "training", config.training_boards, _boards(config.held_out_file))


def left_out(config: FrozenLakeConfig) -> list[str]:
    """Which boards of the training file are no training tasks, and why."""
    if config.task_file is None:
        return []
    tasks = read_task_file(Path(config.task_file))
    _, twins = without_twins(tasks, _twins_of(config))
    if not twins:
        return []
    return [
        f"{len(twins):,} of {len(tasks):,} boards of task file {config.task_file} are left out: "
        f"{_are_twins(config, twins)}"
    ]


def held_out_tasks(config: FrozenLakeConfig, seed: int, count: int) -> list[Task]:
    """The first boards of `held_out_file`, or generated boards that are no training boards of this
    configuration; in the realms of training. Raises `InputError` where the file has too few."""
    if config.held_out_file is None:
        return _as_tasks(config, seed, _generated(config, "held_out", held_out_boards(config, count)))
    path = Path(config.held_out_file)
    tasks = tasks_from_file(config, seed, path)
    if len(tasks) < count:
        raise InputError(
            f"evaluation.tasks: held-out file {path} holds {len(tasks)} tasks, and {count} are asked for"
        )
    return tasks[:count]


def held_out_boards(config: FrozenLakeConfig, count: int) -> list[Board]:
    """Generated boards that are no training boards of this configuration."""
    return _apart(config, "held_out", count)


def test_tasks(config: FrozenLakeConfig, seed: int) -> list[Task]:
    """Generated boards that are neither training nor held-out boards, in the realms of training; none without
    `test_boards`."""
    boards = [] if config.test_boards is None else _apart(config, "test", config.test_boards)
    return _as_tasks(config, seed, _generated(config, "test", boards))


def tasks_from_file(config: FrozenLakeConfig, seed: int, path: Path) -> list[Task]:
    """The tasks of a file. Raises `InputError` where a line is wrong or `format: compact` cannot show it."""
    return _as_tasks(config, seed, _checked(config, path))


def board_key(payload: Mapping[str, Any]) -> str:
    """The board alone: with other words or symbols, or one more step, it is the same problem."""
    return json.dumps(payload.get("board"))


def kept_split(config: FrozenLakeConfig, seed: int) -> FindSplit:
    """Tells whether a board is kept from training: one of `held_out_file` or, where twins are kept apart, a
    twin of one; or one that generation would hold out or set aside, unless `task_file` trains on it. The
    run's seed changes nothing."""
    trained = set(_boards(config.task_file))
    held_out = {kept_apart(board, config) for board in _boards(config.held_out_file)}

    def find(payload: Mapping[str, Any]) -> KeptSplit | None:
        rows = payload.get("board")
        if not isinstance(rows, list) or len({len(row) if isinstance(row, str) else -1 for row in rows}) != 1:
            return None
        board = Board(tuple(map(str, rows)))
        if kept_apart(board, config) in held_out:
            return "held-out"
        if board in trained or not is_generated_size(board.rows, config.rows, config.columns, config.twins):
            return None
        split = split_of(board, config)
        if split == "held_out":
            return "held-out" if config.held_out_file is None else None
        return "test" if split == "test" else None

    return find


def shape_key(payload: Mapping[str, Any]) -> str:
    """The board, turned or mirrored as it may be."""
    return json.dumps(shape_of(payload["board"]))


def difficulty(config: FrozenLakeConfig, task: Task) -> float:
    """Moves on the shortest way from start to goal."""
    board = Board(tuple(task.payload["board"]))
    moves = board.moves_to_goal[board.start]
    assert moves is not None  # no board without a way is a task
    return float(moves)


def _checked(config: FrozenLakeConfig, path: Path) -> list[BoardTask]:
    tasks = read_task_file(path)
    if config.format == "compact":
        for task in tasks:
            _check_compact(config, path, task)
    return tasks


def _check_compact(config: FrozenLakeConfig, path: Path, task: BoardTask) -> None:
    height, width = config.frame
    if task.board.height > height or task.board.width > width:
        raise InputError(
            f"task file {path}, task {task.task_id}: the board is {task.board.size_name}, but format: "
            f"compact with environment.rows: {list(config.rows)} shows boards of at most {height}x{width}"
        )
    if task.max_steps > config.max_steps:
        raise InputError(
            f"task file {path}, task {task.task_id}: max_steps is {task.max_steps}, but format: compact "
            f"allows no more than environment.max_steps: {config.max_steps}"
        )


def _apart(config: FrozenLakeConfig, split: Split, count: int) -> list[Board]:
    """Generated boards of a split that no file of the settings holds."""
    files = [*_boards(config.task_file), *_boards(config.held_out_file)]
    return generate_boards(config, split, count, files)


def _boards(file: str | None) -> list[Board]:
    return [] if file is None else [task.board for task in read_task_file(Path(file))]


def _twins_of(config: FrozenLakeConfig) -> list[Board]:
    """The boards whose twins must not be trained on."""
    return _boards(config.held_out_file) if config.twins == "one_split" else []


def _are_twins(config: FrozenLakeConfig, twins: Sequence[BoardTask]) -> str:
    ids = named([task.task_id for task in twins])
    return (
        f"each is a board of {config.held_out_file} turned or mirrored ({ids}); environment.twins: any_split "
        "would keep them"
    )


def _generated(config: FrozenLakeConfig, split: Split, boards: Iterable[Board]) -> list[BoardTask]:
    return [
        BoardTask(f"frozen_lake-{split}-{config.board_seed}-{number:05d}", board, config.max_steps)
        for number, board in enumerate(boards)
    ]


def _as_tasks(config: FrozenLakeConfig, seed: int, tasks: Iterable[BoardTask]) -> list[Task]:
    """The tasks of these boards; the realms of training, where there are any, take turns."""
    realms = training_realms(config)
    return [
        board_task(config, seed, task, realms[number % len(realms)] if realms else None)
        for number, task in enumerate(tasks)
    ]


def board_task(config: FrozenLakeConfig, seed: int, task: BoardTask, realm: int | None) -> Task:
    """A board with its world. Its type is its realm, since what memory keeps of a realm holds only there."""
    world = world_of_task(config, seed, task.task_id, realm)
    payload = {
        "board": list(task.board.rows),
        "max_steps": task.max_steps,
        "actions": dict(world.actions),
        "symbols": asdict(world.symbols),
    }
    if world.realm:
        payload["realm"] = world.realm
    return Task(task.task_id, f"frozen_lake-{world.realm or task.board.size_name}", "frozen_lake", payload)
