"""The boards of a run: generated ones, those of files, and which of them are kept from training.

No generated board can be in two splits: the hash of a board, or of what it shares with its rotations and
mirror images, decides its split.
"""

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic

from erl_pipeline.environments.grid_games.boards import (
    BoardT,
    ConfigT,
    GridBoard,
    GridSettings,
    is_generated_size,
    named,
    shape_of,
    without_twins,
)
from erl_pipeline.environments.grid_games.hidden_words import BoardSymbols, World, task_world
from erl_pipeline.environments.interface import FindSplit, KeptSplit, Split, Task
from erl_pipeline.environments.tasks import files_in, json_lines
from storage.errors import ConfigError, InputError

_SHARES = 8
_SMALL_SPLITS: dict[int, Split] = {0: "held_out", 1: "test"}
"""One board in eight is held out, another one in eight for the test; the others are for training."""
_KEYS = ("task_id", "board", "max_steps")


@dataclass(frozen=True)
class BoardTask(Generic[BoardT]):
    """A board, and the moves of an attempt at it."""

    task_id: str
    board: BoardT
    max_steps: int


@dataclass(frozen=True)
class BoardFile(Generic[BoardT]):
    """The tasks of a file, in its order, and the ids of its boards that need more moves than are allowed."""

    tasks: Sequence[BoardTask[BoardT]]
    too_long: Sequence[str]


Entry = tuple[int, str, BoardTask[BoardT] | None]
"""The number of a line, a task's id, and the task; None for a board that needs too many moves."""


class GridTasks(ABC, Generic[ConfigT, BoardT]):
    """The training, held-out and test tasks of a game. `seed` is the run's and chooses the hidden world."""

    name: str
    """The environment's name, which all task types begin with."""
    board: type[BoardT]
    symbols: type[BoardSymbols]
    letters: str
    """The letters of boards, for people."""
    alphabet: str
    """The letters of boards; a board with another one is of another game."""
    tries: int
    """Draws without a new board after which there is none."""
    looser: str
    """The settings that would allow more boards, for people."""

    @abstractmethod
    def parse(self, rows: Sequence[str], max_steps: int) -> BoardT:
        """The board of these rows; `ValueError` saying what is wrong with them."""

    @abstractmethod
    def draw(self, stream: random.Random, config: ConfigT) -> BoardT:
        """A random board, of which the settings may allow some only."""

    @abstractmethod
    def is_wanted(self, board: BoardT, config: ConfigT) -> bool:
        """Whether the settings allow a board that was drawn."""

    def world(self, config: ConfigT, seed: int, task_id: str, place: int) -> World[Any]:
        """The world of a task. `place` is its place among the tasks of its split."""
        return task_world(config, seed, task_id, self.symbols)

    def check_compact(self, board: BoardT, config: ConfigT) -> None:
        """Raise `ValueError` for a board of a file that the compact form cannot show, whatever its size."""

    def entries(self, path: Path, max_steps: int) -> Iterator[Entry[BoardT]]:
        """What a file holds: JSON lines `{"task_id": ..., "board": [rows], "max_steps": ...}`, blank ones
        skipped. `max_steps` is for boards without a limit of their own.

        Raises `InputError` naming the file, the line and what is wrong with it.
        """
        for number, task in json_lines(path, "task file", _KEYS, self._parse):
            yield number, task.task_id, task

    def read_file(self, path: Path, max_steps: int) -> BoardFile[BoardT]:
        """The tasks of a file. Raises `InputError` as `entries` does, and for an id that occurs twice."""
        tasks: list[BoardTask[BoardT]] = []
        too_long: list[str] = []
        lines_by_id: dict[str, int] = {}
        for number, task_id, task in self.entries(path, max_steps):
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
        if not tasks:
            reason = f": each of its levels needs more than environment.max_steps: {max_steps} moves"
            raise InputError(f"task file {path} holds no task{reason if too_long else ''}")
        return BoardFile(tasks, too_long)

    def training_tasks(self, config: ConfigT, seed: int) -> list[Task]:
        """The boards of `task_file`, or generated ones."""
        if config.task_file is None:
            return self._generated(config, seed, "training", self.training_boards(config))
        path = Path(config.task_file)
        kept, twins = without_twins(self._checked(config, path), self._twins_of(config))
        if not kept:
            raise InputError(f"task file {path} holds no training board: {_are_twins(config, twins)}")
        return self._tasks(config, seed, kept)

    def training_boards(self, config: ConfigT) -> list[BoardT]:
        """Generated training boards, which demonstrations show too; none is of `held_out_file`."""
        return self.generate(
            config, "training", config.training_boards, self._boards(config, config.held_out_file)
        )

    def held_out_tasks(self, config: ConfigT, seed: int, count: int) -> list[Task]:
        """The first boards of `held_out_file`, or generated boards that are no training boards of this
        configuration. Raises `InputError` where the file has too few."""
        if config.held_out_file is None:
            return self._generated(config, seed, "held_out", self.held_out_boards(config, count))
        path = Path(config.held_out_file)
        tasks = self.tasks_from_file(config, seed, path)
        if len(tasks) < count:
            raise InputError(
                f"evaluation.tasks: held-out file {path} holds {len(tasks)} tasks, and {count} are asked for"
            )
        return tasks[:count]

    def held_out_boards(self, config: ConfigT, count: int) -> list[BoardT]:
        """Generated boards that are no training boards of this configuration."""
        return self._apart(config, "held_out", count)

    def test_tasks(self, config: ConfigT, seed: int) -> list[Task]:
        """Generated boards that are neither training nor held-out boards; none without `test_boards`."""
        boards = [] if config.test_boards is None else self._apart(config, "test", config.test_boards)
        return self._generated(config, seed, "test", boards)

    def tasks_from_file(self, config: ConfigT, seed: int, path: Path) -> list[Task]:
        """The tasks of a file. Raises `InputError` where a line is wrong or `format: compact` cannot show
        it."""
        return self._tasks(config, seed, self._checked(config, path))

    def left_out(self, config: ConfigT) -> list[str]:
        """Which boards of the files are no tasks, and why."""
        files = {
            name: self.read_file(Path(name), config.max_steps)
            for name in (config.task_file, config.held_out_file)
            if name
        }
        said = [
            f"{len(file.too_long):,} of {len(file.too_long) + len(file.tasks):,} levels of task file {name} "
            f"are left out: they need more than environment.max_steps: {config.max_steps} moves "
            f"({named(file.too_long)})"
            for name, file in files.items()
            if file.too_long
        ]
        if config.task_file is not None:
            tasks = files[config.task_file].tasks
            _, twins = without_twins(tasks, self._twins_of(config))
            if twins:
                said.append(
                    f"{len(twins):,} of {len(tasks):,} boards of task file {config.task_file} are left out: "
                    f"{_are_twins(config, twins)}"
                )
        return said

    def kept_split(self, config: ConfigT, seed: int) -> FindSplit:
        """Tells whether a board is kept from training: one of `held_out_file` or, where twins are kept apart,
        a twin of one; or one that generation would hold out or set aside, unless `task_file` trains on it.
        The run's seed changes nothing."""
        trained = set(self._boards(config, config.task_file))
        held_out = {kept_apart(board, config) for board in self._boards(config, config.held_out_file)}

        def find(payload: Mapping[str, Any]) -> KeptSplit | None:
            rows = payload.get("board")
            if not isinstance(rows, list):
                return None
            if len({len(row) if isinstance(row, str) else -1 for row in rows}) != 1:
                return None
            board = self.board(tuple(_with_spaces(row) for row in rows))
            if not set(board.letters) <= set(self.alphabet):
                return None
            if kept_apart(board, config) in held_out:
                return "held-out"
            if board in trained:
                return None
            if not is_generated_size(board.rows, config.rows, config.columns, config.twins):
                return None
            split = split_of(board, config)
            if split == "held_out":
                return "held-out" if config.held_out_file is None else None
            return "test" if split == "test" else None

        return find

    def generate(
        self, config: ConfigT, split: Split, count: int, excluded: Iterable[BoardT] = ()
    ) -> list[BoardT]:
        """`count` different boards of a split, in an order that depends on `config.board_seed` alone.

        None of them is one of `excluded` or, where twins are kept apart, a rotation or mirror image of one. A
        smaller `count` gives the beginning of the same list. Raises `ConfigError` where the settings
        allow too few boards.
        """
        stream = random.Random(f"{self.name}/{split}/{config.board_seed}")
        never = {kept_apart(board, config) for board in excluded}
        boards: dict[BoardT, None] = {}
        tries = 0
        while len(boards) < count:
            if tries == self.tries:
                raise ConfigError(
                    f"environment: only {len(boards)} different {split} boards were found, {count} are asked "
                    f"for; allow more sizes, {self.looser}, or ask for fewer boards"
                    + (", or set twins: any_split" if config.twins == "one_split" else "")
                )
            tries += 1
            board = self.draw(stream, config)
            # What a game wants may need a search for a solution, which takes longest, so it comes last.
            if board in boards or kept_apart(board, config) in never or split_of(board, config) != split:
                continue
            if self.is_wanted(board, config):
                boards[board] = None
                tries = 0
        return list(boards)

    def task(self, board: BoardTask[BoardT], world: World[Any]) -> Task:
        """A board with its world. Its type is its realm, since what memory keeps of a realm holds only there,
        or else its size."""
        payload = {
            "board": list(board.board.rows),
            "max_steps": board.max_steps,
            "actions": dict(world.actions),
            "symbols": asdict(world.symbols),
        }
        if world.realm:
            payload["realm"] = world.realm
        return Task(board.task_id, f"{self.name}-{world.realm or board.board.size_name}", self.name, payload)

    def _tasks(self, config: ConfigT, seed: int, tasks: Iterable[BoardTask[BoardT]]) -> list[Task]:
        return [
            self.task(task, self.world(config, seed, task.task_id, place)) for place, task in enumerate(tasks)
        ]

    def _generated(self, config: ConfigT, seed: int, split: Split, boards: Iterable[BoardT]) -> list[Task]:
        ids = f"{self.name}-{split}-{config.board_seed}"
        tasks = (
            BoardTask(f"{ids}-{place:05d}", board, config.max_steps) for place, board in enumerate(boards)
        )
        return self._tasks(config, seed, tasks)

    def _apart(self, config: ConfigT, split: Split, count: int) -> list[BoardT]:
        """Generated boards of a split that no file of the settings holds."""
        files = [*self._boards(config, config.task_file), *self._boards(config, config.held_out_file)]
        return self.generate(config, split, count, files)

    def _boards(self, config: ConfigT, file: str | None) -> list[BoardT]:
        return [] if file is None else [t.board for t in self.read_file(Path(file), config.max_steps).tasks]

    def _twins_of(self, config: ConfigT) -> list[BoardT]:
        """The boards whose twins must not be trained on."""
        return self._boards(config, config.held_out_file) if config.twins == "one_split" else []

    def _checked(self, config: ConfigT, path: Path) -> Sequence[BoardTask[BoardT]]:
        tasks = self.read_file(path, config.max_steps).tasks
        if config.format == "compact":
            for task in tasks:
                try:
                    self._check_compact(task, config)
                except ValueError as error:
                    raise InputError(f"task file {path}, task {task.task_id}: {error}") from error
        return tasks

    def _check_compact(self, task: BoardTask[BoardT], config: ConfigT) -> None:
        rows, columns = config.rows[1], config.column_range[1]
        if task.board.height > rows or task.board.width > columns:
            raise ValueError(
                f"the board is {task.board.size_name}, but format: compact with environment.rows: "
                f"{list(config.rows)} shows boards of at most {rows}x{columns}"
            )
        self.check_compact(task.board, config)
        if task.max_steps > config.max_steps:
            raise ValueError(
                f"max_steps is {task.max_steps}, but format: compact allows no more than "
                f"environment.max_steps: {config.max_steps}"
            )

    def _parse(self, number: int, record: Mapping[str, Any]) -> BoardTask[BoardT]:
        """Raises `ValueError` saying what is wrong."""
        task_id, rows, max_steps = (record[key] for key in _KEYS)
        if not isinstance(task_id, str) or not task_id:
            raise ValueError(f"task_id: {task_id!r}; allowed is a text that is not empty")
        if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
            raise ValueError(f"board: allowed is a list of rows, each a text of the letters {self.letters}")
        if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
            raise ValueError(f"max_steps: {max_steps!r}; allowed are whole numbers from 1")
        return BoardTask(task_id, self.parse(rows, max_steps), max_steps)


def split_of(board: GridBoard[Any], config: GridSettings) -> Split:
    """The split of a generated board, whatever the seed it came from.

    Without `test_boards` the boards of the test split are training boards; they are never held-out boards.
    """
    digest = hashlib.sha256("/".join(kept_apart(board, config)).encode()).digest()
    split = _SMALL_SPLITS.get(digest[0] % _SHARES, "training")
    return "training" if split == "test" and config.test_boards is None else split


def kept_apart(board: GridBoard[Any], config: GridSettings) -> tuple[str, ...]:
    """What no board of another split may have in common with this one: its rows, or its shape."""
    return board.shape if config.twins == "one_split" else board.rows


def board_key(payload: Mapping[str, Any]) -> str:
    """The board alone: with other words or symbols, or one more step, it is the same problem."""
    rows = payload.get("board")
    return json.dumps([_with_spaces(str(row)) for row in rows] if isinstance(rows, list) else rows)


def _with_spaces(row: str) -> str:
    """A row of a board; Sokoban's may have `-` for floor."""
    return row.replace("-", " ")


def shape_key(payload: Mapping[str, Any]) -> str:
    """The board, turned or mirrored as it may be."""
    return json.dumps(shape_of(payload["board"]))


def settings_files(config: GridSettings) -> dict[str, Path]:
    return files_in(config, "task_file", "held_out_file")


def _are_twins(config: GridSettings, twins: Sequence[BoardTask[Any]]) -> str:
    ids = named([task.task_id for task in twins])
    return (
        f"each is a board of {config.held_out_file} turned or mirrored ({ids}); environment.twins: any_split "
        "would keep them"
    )
