"""Boards from a file: JSON lines like those of the ERL paper, or levels in the format of Boxoban."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.environments.sokoban.board import Board, parse_board
from erl_pipeline.environments.sokoban.solving import NeedsMoreMoves, require_solvable
from storage.errors import InputError

_KEYS = ("task_id", "board", "max_steps")


@dataclass(frozen=True)
class BoardTask:
    """One task of a file."""

    task_id: str
    board: Board
    max_steps: int


@dataclass(frozen=True)
class TaskFile:
    """The tasks of a file, in its order, and the ids of its levels that need more moves than are allowed."""

    tasks: list[BoardTask]
    too_long: list[str]


@dataclass(frozen=True)
class _Level:
    """A level as it is in a file; `line` is the line of its name."""

    name: str
    line: int
    rows: list[str]


_Read = tuple[int, str, BoardTask | None]
"""The number of a line, a task's id, and the task; None for a level that needs too many moves."""


def read_task_file(path: Path, max_steps: int) -> TaskFile:
    """Read a file. `max_steps` is for levels, which have no limit of their own; those that need more moves
    are no tasks.

    A file whose name ends in `.txt` holds levels: a line `; NAME`, the rows, a blank line. Any other holds
    JSON lines `{"task_id": ..., "board": [rows], "max_steps": ...}`; blank lines are skipped.

    Raises `InputError` naming the file, the line and what is wrong with it.
    """
    read = _levels if path.suffix == ".txt" else _json_lines
    tasks: list[BoardTask] = []
    too_long: list[str] = []
    lines_by_id: dict[str, int] = {}
    for number, task_id, task in read(path, max_steps):
        if task_id in lines_by_id:
            raise InputError(
                f"task file {path}, line {number}: task_id {task_id!r} is already on line "
                f"{lines_by_id[task_id]}"
            )
        lines_by_id[task_id] = number
        if task is None:
            too_long.append(task_id)
        else:
            tasks.append(task)
    if too_long and not tasks:
        raise InputError(
            f"task file {path} holds no task: each of its levels needs more than environment.max_steps: "
            f"{max_steps} moves"
        )
    if not tasks:
        raise InputError(f"task file {path} holds no task")
    return TaskFile(tasks, too_long)


def _json_lines(path: Path, max_steps: int) -> Iterator[_Read]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            task = _parse_line(line)
        except ValueError as error:
            raise InputError(f"task file {path}, line {number}: {error}") from error
        yield number, task.task_id, task


def _parse_line(line: str) -> BoardTask:
    """Raises `ValueError` saying what is wrong."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    missing = [key for key in _KEYS if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; needed: an object with {', '.join(_KEYS)}")
    task_id, rows, max_steps = (record[key] for key in _KEYS)
    if not isinstance(task_id, str) or not task_id:
        raise ValueError(f"task_id: {task_id!r}; allowed is a text that is not empty")
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise ValueError("board: allowed is a list of rows, each a text of the letters # @ + $ * . and space")
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise ValueError(f"max_steps: {max_steps!r}; allowed are whole numbers from 1")
    return _task(task_id, rows, max_steps)


def _levels(path: Path, max_steps: int) -> Iterator[_Read]:
    level: _Level | None = None
    for number, line in [*_lines(path), (0, "")]:
        if line.startswith(";"):
            if level is not None:
                yield _parse_level(path, level, max_steps)
            level = _Level(line[1:].strip(), number, [])
        elif line.strip():
            if level is None:
                raise InputError(
                    f"task file {path}, line {number}: a row before the first level; each begins with a line "
                    "such as '; 0'"
                )
            level.rows.append(line.rstrip("\r"))
        elif level is not None and (level.rows or number == 0):
            yield _parse_level(path, level, max_steps)
            level = None


def _parse_level(path: Path, level: _Level, max_steps: int) -> _Read:
    task_id = f"{path.stem}-{level.name}"
    try:
        if not level.name:
            raise ValueError("the level has no name; needed: a line such as '; 0'")
        return level.line, task_id, _task(task_id, level.rows, max_steps)
    except NeedsMoreMoves:
        return level.line, task_id, None
    except ValueError as error:
        raise InputError(f"task file {path}, line {level.line}, level {level.name!r}: {error}") from error


def _task(task_id: str, rows: list[str], max_steps: int) -> BoardTask:
    board = parse_board(rows)
    require_solvable(board, max_steps)
    return BoardTask(task_id, board, max_steps)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"task file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"task file {path} is not UTF-8 text (byte {error.start})") from error
    yield from enumerate(text.split("\n"), start=1)
