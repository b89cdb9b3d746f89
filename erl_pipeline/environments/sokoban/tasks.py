"""The training, held-out and test tasks of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from erl_pipeline.environments.board_twins import is_generated_size, named, shape_of, without_twins
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.generation import Split, generate_boards, kept_apart, split_of
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.task_file import BoardTask, TaskFile, read_task_file
from erl_pipeline.environments.sokoban.world import world_of_task
from erl_pipeline.environments.splits import FindSplit, KeptSplit
from storage.errors import InputError


def training_tasks(config: SokobanConfig, seed: int) -> list[Task]:
    """The boards of `task_file`, or generated ones. `seed` is the run's seed and chooses the hidden world."""
    if config.task_file is None:
        return _generated(config, seed, "training", training_boards(config))
    path = Path(config.task_file)
    kept, twins = without_twins(_checked(config, path), _twins_of(config))
    if not kept:
        raise InputError(f"task file {path} holds no training board: {_are_twins(config, twins)}")
    return [_task(config, seed, task) for task in kept]


def training_boards(config: SokobanConfig) -> list[Board]:
    """Generated training boards, which demonstrations show too; none is of `held_out_file`."""
    return generate_boards(config, "training", config.training_boards, _boards(config, config.held_out_file))


def left_out(config: SokobanConfig) -> list[str]:
    """Which boards of the files are no tasks, and why."""
    files = {name: _file(config, name) for name in (config.task_file, config.held_out_file) if name}
    said = [
        f"{len(file.too_long):,} of {len(file.too_long) + len(file.tasks):,} levels of task file {name} are "
        f"left out: they need more than environment.max_steps: {config.max_steps} moves "
        f"({named(file.too_long)})"
        for name, file in files.items()
        if file.too_long
    ]
    if config.task_file is not None:
        tasks = files[config.task_file].tasks
        _, twins = without_twins(tasks, _twins_of(config))
        if twins:
            said.append(
                f"{len(twins):,} of {len(tasks):,} boards of task file {config.task_file} are left out: "
                f"{_are_twins(config, twins)}"
            )
    return said


def held_out_tasks(config: SokobanConfig, seed: int, count: int) -> list[Task]:
    """The first boards of `held_out_file`, or generated boards that are no training boards of this
    configuration. Raises `InputError` where the file has too few."""
    if config.held_out_file is None:
        return _generated(config, seed, "held_out", _apart(config, "held_out", count))
    path = Path(config.held_out_file)
    tasks = tasks_from_file(config, seed, path)
    if len(tasks) < count:
        raise InputError(
            f"evaluation.tasks: held-out file {path} holds {len(tasks)} tasks, and {count} are asked for"
        )
    return tasks[:count]


def test_tasks(config: SokobanConfig, seed: int) -> list[Task]:
    """Generated boards that are neither training nor held-out boards; none without `test_boards`."""
    boards = [] if config.test_boards is None else _apart(config, "test", config.test_boards)
    return _generated(config, seed, "test", boards)


def tasks_from_file(config: SokobanConfig, seed: int, path: Path) -> list[Task]:
    """The tasks of a file. Raises `InputError` where a line is wrong or `format: compact` cannot show it."""
    return [_task(config, seed, task) for task in _checked(config, path)]


def board_key(payload: Mapping[str, Any]) -> str:
    """The board alone: with other words or symbols, or one more step, it is the same problem."""
    return json.dumps(payload.get("board"))


def kept_split(config: SokobanConfig, seed: int) -> FindSplit:
    """Tells whether a board is kept from training: one of `held_out_file` or, where twins are kept apart, a
    twin of one; or one that generation would hold out or set aside, unless `task_file` trains on it. The
    run's seed changes nothing."""
    trained = set(_boards(config, config.task_file))
    held_out = {kept_apart(board, config) for board in _boards(config, config.held_out_file)}

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


def _checked(config: SokobanConfig, path: Path) -> list[BoardTask]:
    tasks = read_task_file(path, config.max_steps).tasks
    if config.format == "compact":
        for task in tasks:
            _check_compact(config, path, task)
    return tasks


def _check_compact(config: SokobanConfig, path: Path, task: BoardTask) -> None:
    board, named = task.board, f"task file {path}, task {task.task_id}"
    rows, columns = config.rows[1], config.column_range[1]
    if board.height > rows or board.width > columns:
        raise InputError(
            f"{named}: the board is {board.size_name}, but format: compact with environment.rows: "
            f"{list(config.rows)} shows boards of at most {rows}x{columns}"
        )
    if not board.has_border:
        raise InputError(f"{named}: format: compact needs a board with walls all around")
    if len(board.start.boxes) != config.boxes[0]:
        raise InputError(
            f"{named}: the board has {len(board.start.boxes)} boxes, but format: compact with "
            f"environment.boxes: {list(config.boxes)} shows {config.boxes[0]}"
        )
    if task.max_steps > config.max_steps:
        raise InputError(
            f"{named}: max_steps is {task.max_steps}, but format: compact allows no more than "
            f"environment.max_steps: {config.max_steps}"
        )


def _apart(config: SokobanConfig, split: Split, count: int) -> list[Board]:
    """Generated boards of a split that no file of the settings holds."""
    files = [*_boards(config, config.task_file), *_boards(config, config.held_out_file)]
    return generate_boards(config, split, count, files)


def _file(config: SokobanConfig, file: str) -> TaskFile:
    return read_task_file(Path(file), config.max_steps)


def _boards(config: SokobanConfig, file: str | None) -> list[Board]:
    return [] if file is None else [task.board for task in _file(config, file).tasks]


def _twins_of(config: SokobanConfig) -> list[Board]:
    """The boards whose twins must not be trained on."""
    return _boards(config, config.held_out_file) if config.twins == "one_split" else []


def _are_twins(config: SokobanConfig, twins: Sequence[BoardTask]) -> str:
    ids = named([task.task_id for task in twins])
    return (
        f"each is a board of {config.held_out_file} turned or mirrored ({ids}); environment.twins: any_split "
        "would keep them"
    )


def _generated(config: SokobanConfig, seed: int, split: Split, boards: Iterable[Board]) -> list[Task]:
    return [
        _task(
            config,
            seed,
            BoardTask(f"sokoban-{split}-{config.board_seed}-{number:05d}", board, config.max_steps),
        )
        for number, board in enumerate(boards)
    ]


def _task(config: SokobanConfig, seed: int, task: BoardTask) -> Task:
    """A board with its world."""
    world = world_of_task(config, seed, task.task_id)
    payload = {
        "board": list(task.board.rows),
        "max_steps": task.max_steps,
        "actions": dict(world.actions),
        "symbols": asdict(world.symbols),
    }
    return Task(task.task_id, f"sokoban-{task.board.size_name}", "sokoban", payload)
