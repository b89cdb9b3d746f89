"""Boards that are the same problem, seen turned or in a mirror."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeVar

Twins = Literal["one_split", "any_split"]
"""Where the rotations and mirror images of a board may be: in its split alone, or in any."""

_NAMED = 5  # ids in a sentence about many tasks


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


class _Board(Protocol):
    @property
    def rows(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> tuple[str, ...]: ...


class _BoardTask(Protocol):
    @property
    def task_id(self) -> str: ...
    @property
    def board(self) -> _Board: ...


TaskT = TypeVar("TaskT", bound=_BoardTask)


def without_twins(tasks: Iterable[TaskT], others: Iterable[_Board]) -> tuple[list[TaskT], list[TaskT]]:
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
