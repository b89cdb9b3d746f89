"""Boards of grid games, boards that are the same problem turned or in a mirror, and settings of all games."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.prompts import check_template

Direction = Literal["up", "right", "down", "left"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

Twins = Literal["one_split", "any_split"]
"""Where the rotations and mirror images of a board may be: in its split alone, or in any."""

StateT = TypeVar("StateT")
BoardT = TypeVar("BoardT", bound="GridBoard[Any]")

_OFFSETS: dict[Direction, tuple[int, int]] = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
_NAMED = 5  # ids in a sentence about many tasks


@dataclass(frozen=True)
class GridBoard(ABC, Generic[StateT]):
    """Rows of letters. A cell is a number: row times width plus column. A state is what moves change."""

    rows: tuple[str, ...]

    @cached_property
    def height(self) -> int:
        return len(self.rows)

    @cached_property
    def width(self) -> int:
        return len(self.rows[0])

    @cached_property
    def size_name(self) -> str:
        """Height and width, such as `4x4`."""
        return f"{self.height}x{self.width}"

    @cached_property
    def shape(self) -> tuple[str, ...]:
        """What the board has in common with its rotations and mirror images, and with no other board."""
        return shape_of(self.rows)

    @cached_property
    def letters(self) -> str:
        """The letters of all cells, row by row."""
        return "".join(self.rows)

    def beside(self, cell: int, direction: Direction) -> int | None:
        """The next cell in a direction; None outside the board."""
        row, column = divmod(cell, self.width)
        row_offset, column_offset = _OFFSETS[direction]
        row, column = row + row_offset, column + column_offset
        inside = 0 <= row < self.height and 0 <= column < self.width
        return row * self.width + column if inside else None

    @property
    @abstractmethod
    def start(self) -> StateT: ...

    @abstractmethod
    def move(self, state: StateT, direction: Direction) -> tuple[str, StateT]:
        """What comes of a move, in a word, and the state after it."""

    @abstractmethod
    def is_over(self, state: StateT) -> bool:
        """Whether nobody moves on from this state."""


def require_letters(rows: Sequence[str], letters: Iterable[str], allowed: str) -> None:
    """Raise `ValueError`, saying what is wrong, unless the rows have one length and these letters alone."""
    if not rows or not rows[0]:
        raise ValueError("the board is empty")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"row {number} has {len(row)} cells, row 1 has {len(rows[0])}; all rows need the same length"
            )
        for column, letter in enumerate(row, start=1):
            if letter not in letters:
                raise ValueError(
                    f"row {number}, column {column}: unknown letter {letter!r}; allowed are {allowed}"
                )


def shape_of(rows: Sequence[str]) -> tuple[str, ...]:
    """The first, in alphabetical order, of a board's four rotations and their mirror images.

    Two boards have the same shape if, and only if, one is a rotation or a mirror image of the other.
    """
    turned = tuple(rows)
    images: list[tuple[str, ...]] = []
    for _ in range(4):
        turned = tuple("".join(column) for column in zip(*reversed(turned), strict=True))  # clockwise
        images += [turned, tuple(row[::-1] for row in turned)]
    return min(images)


def is_generated_size(
    board: Sequence[str], rows: tuple[int, int], columns: tuple[int, int] | None, twins: Twins
) -> bool:
    """Whether generation makes boards of this size, as it is or, where twins share a split, turned.

    `rows` and `columns` are the least and most of generation; without `columns` it makes squares.
    """
    height, width = len(board), len(board[0])
    sizes = [(height, width), (width, height)] if twins == "one_split" else [(height, width)]
    return any(
        rows[0] <= high <= rows[1] and (wide == high if columns is None else columns[0] <= wide <= columns[1])
        for high, wide in sizes
    )


class _HasBoard(Protocol):
    @property
    def board(self) -> GridBoard[Any]: ...


TaskT = TypeVar("TaskT", bound=_HasBoard)


def without_twins(
    tasks: Iterable[TaskT], others: Iterable[GridBoard[Any]]
) -> tuple[list[TaskT], list[TaskT]]:
    """The tasks without those whose board is another one turned or mirrored, and those that it is.

    A board that is equal to another one stays: what has it among training and held-out tasks refuses it.
    """
    rows, shapes = set(), set()
    for board in others:
        rows.add(board.rows)
        shapes.add(board.shape)
    kept: list[TaskT] = []
    twins: list[TaskT] = []
    for task in tasks:
        is_twin = task.board.shape in shapes and task.board.rows not in rows
        (twins if is_twin else kept).append(task)
    return kept, twins


def named(ids: Sequence[str]) -> str:
    """The first ids, and how many more there are."""
    more = len(ids) - _NAMED
    return ", ".join(ids[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


INSTRUCTIONS = (
    "You act in a world that is shown as a grid of symbols. Its rules and the meaning of the symbols are not "
    "told; find out what leads to success. You may think first; the last square brackets count. The possible "
    "actions are: {{ actions | join(', ') }}."
)


class GridSettings(PluginSettings):
    """Boards, and what a policy is told of them."""

    task_file: str | None = None
    """Training boards: JSON lines `{"task_id", "board": [rows], "max_steps"}`; `null`: generated."""
    held_out_file: str | None = None
    """Held-out boards, in a file of the same form; `null`: generated."""
    board_seed: int = Field(default=0, ge=0)
    """Generated boards derive from it alone, so that runs with different seeds share their boards."""
    training_boards: int = Field(default=4096, ge=1, le=100_000)
    """Generated training boards, all different, none of them a held-out board. The cold start of a tiny
    policy shows them too."""
    test_boards: int | None = Field(default=None, ge=1, le=100_000)
    """Generated boards of a third split. Only `compare` uses it, for its report; the boards are then not
    trained on. `null`: there is no such split."""
    twins: Twins = "one_split"
    """`one_split`: a board's rotations and mirror images are in its split, so no training board is a held-out
    or a test board turned around; a training file's boards that are, are left out. `any_split`: only equal
    boards are kept apart."""
    rows: tuple[int, int]
    """Least and most rows of a generated board."""
    columns: tuple[int, int] | None = None
    """Least and most columns of a generated board; `null` makes square boards."""
    max_steps: int = Field(ge=1)
    """Moves in one attempt."""
    action_mode: Literal["step", "plan"] = "step"
    """`step`: one action a turn, with an observation after each. `plan`: all actions in one turn."""
    format: str = "compact"
    """How a policy is told of an attempt."""
    actions: str = "hidden_world"
    """Where the meaning of an action word comes from."""
    action_words: tuple[str, str, str, str]
    """The neutral words."""
    world_seed: int | None = Field(default=None, ge=0)
    """Chooses the permutation of `hidden_world`; `null` takes the run's seed."""
    symbols: tuple[str, ...]
    """Characters of the cells."""
    permute_symbols: bool = False
    """Another permutation of the symbols for each task."""
    instructions: str = INSTRUCTIONS
    """What a language model is told first, as a Jinja template. Variables: actions, the action words in
    alphabetical order. `format: prose` says with each observation how to answer."""

    @property
    def column_range(self) -> tuple[int, int]:
        """Least and most columns; square boards have those of `rows`."""
        return self.columns or self.rows

    @property
    def frame(self) -> tuple[int, int]:
        """Rows and columns that the compact form shows."""
        return self.rows[1], self.column_range[1]

    @property
    def moving(self) -> int:
        """How many things move on a board: in the compact form each has a word that says where it is."""
        return 1

    def require_ranges(self, **smallest: int) -> None:
        """Raise `ValueError` unless these settings are [least, most], from a smallest value on, or null."""
        for key, least in smallest.items():
            value = getattr(self, key)
            if value is not None and not least <= value[0] <= value[1]:
                raise ValueError(
                    f"{key}: {list(value)}: allowed is [least, most] with {least} <= least <= most"
                )

    @field_validator("instructions")
    @classmethod
    def _instructions_can_be_rendered(cls, template: str) -> str:
        return check_template("instructions", template, {"actions": ["a", "b"]})

    @model_validator(mode="after")
    def _distinct_words(self) -> GridSettings:
        for key, words in (("action_words", self.action_words), ("symbols", self.symbols)):
            number = {4: "four", 7: "seven"}.get(len(words), str(len(words)))
            if len(set(words)) != len(words) or any(word.split() != [word] for word in words):
                raise ValueError(f"{key}: {list(words)}: allowed are {number} different words without spaces")
            if key == "symbols" and any(len(symbol) != 1 for symbol in words):
                raise ValueError(f"symbols: {list(words)}: allowed are {number} single characters")
        if any(word != word.lower() for word in self.action_words):
            raise ValueError(f"action_words: {list(self.action_words)}: allowed are words in lower case")
        return self


ConfigT = TypeVar("ConfigT", bound=GridSettings)
