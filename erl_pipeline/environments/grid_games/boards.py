"""Boards of grid games, and boards that are the same problem, seen turned or in a mirror."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

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
