"""Boards from a file: JSON lines of `{"task_id": ..., "board": [rows], "max_steps": ...}`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.environments.frozen_lake.board import Board, parse_board
from storage.errors import InputError

_KEYS = ("task_id", "board", "max_steps")


@dataclass(frozen=True)
class BoardTask:
    """One line of a task file."""

    task_id: str
    board: Board
    max_steps: int


def read_task_file(path: Path) -> list[BoardTask]:
    """The tasks of a file, in its order; blank lines are skipped.

    Raises `InputError` naming the file, the line and what is wrong with it.
    """
    tasks: list[BoardTask] = []
    lines_by_id: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            task = _parse_line(line)
            if task.task_id in lines_by_id:
                raise ValueError(f"task_id {task.task_id!r} is already on line {lines_by_id[task.task_id]}")
        except ValueError as error:
            raise InputError(f"task file {path}, line {number}: {error}") from error
        lines_by_id[task.task_id] = number
        tasks.append(task)
    if not tasks:
        raise InputError(f"task file {path} holds no task")
    return tasks


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"task file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"task file {path} is not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


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
        raise ValueError("board: allowed is a list of rows, each a text of the letters S, F, H and G")
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
        raise ValueError(f"max_steps: {max_steps!r}; allowed are whole numbers from 1")
    return BoardTask(task_id, parse_board(rows), max_steps)
