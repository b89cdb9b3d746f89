"""Deadlocks: boxes that can never all be brought onto goals, whatever the player does.

Only deadlocks that can be seen at a glance are found; a board may be lost without any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.sokoban.board import Board

Deadlock = Literal["corner", "wall", "square"]
"""`corner`: a box in a corner that is no goal. `wall`: boxes along a wall that they cannot leave, with too
few goals along it. `square`: four cells in a square, all of them boxes or walls, with two boxes or more, at
least one of them not on a goal."""

_ACROSS: tuple[tuple[Direction, tuple[Direction, Direction]], ...] = (
    ("up", ("left", "right")),
    ("right", ("up", "down")),
    ("down", ("left", "right")),
    ("left", ("up", "down")),
)
"""Each side of a box, and the two ways along it."""


def deadlocks(board: Board, boxes: Sequence[int]) -> list[Deadlock]:
    """The kinds of deadlocks of these boxes, each once, in the order of `Deadlock`."""
    found: list[Deadlock] = []
    if any(_in_corner(board, box) for box in boxes if box not in board.goals):
        found.append("corner")
    if any(_bound_to_wall(board, box, boxes) for box in boxes):
        found.append("wall")
    if any(_in_square(board, box, boxes) for box in boxes if box not in board.goals):
        found.append("square")
    return found


def _is_wall(board: Board, cell: int, side: Direction) -> bool:
    return board.neighbours[side][cell] is None


def _in_corner(board: Board, box: int) -> bool:
    upright = _is_wall(board, box, "up") or _is_wall(board, box, "down")
    return upright and (_is_wall(board, box, "left") or _is_wall(board, box, "right"))


def _bound_to_wall(board: Board, box: int, boxes: Sequence[int]) -> bool:
    """Whether a box that is in no corner is along an unbroken wall between two corners, with fewer goals than
    boxes along it."""
    if _in_corner(board, box):
        return False
    for side, ways in _ACROSS:
        along = _along_wall(board, box, side, ways)
        if along and len(along.intersection(boxes)) > len(along & board.goals):
            return True
    return False


def _along_wall(board: Board, box: int, side: Direction, ways: tuple[Direction, Direction]) -> set[int]:
    """The cells that a box can be pushed to along this wall; empty where it can leave the wall."""
    along: set[int] = set()
    for way in ways:
        cell: int | None = box
        while cell is not None:
            if not _is_wall(board, cell, side):
                return set()
            along.add(cell)
            cell = board.neighbours[way][cell]
    return along


def _in_square(board: Board, box: int, boxes: Sequence[int]) -> bool:
    """Whether the other three cells of some square with this box are walls or boxes, at least one a box."""
    for side in ("up", "down"):
        for way in ("left", "right"):
            around = _square(board, box, side, way)
            if all(cell is None or cell in boxes for cell in around) and any(
                cell in boxes for cell in around
            ):
                return True
    return False


def _square(
    board: Board, box: int, side: Literal["up", "down"], way: Literal["left", "right"]
) -> list[int | None]:
    """The other three cells of a square; None for a wall."""
    row, column = divmod(box, board.width)
    row, column = row + (1 if side == "down" else -1), column + (1 if way == "right" else -1)
    inside = 0 <= row < board.height and 0 <= column < board.width
    corner = row * board.width + column
    open_corner = inside and board.letters[corner] != "#"
    return [board.neighbours[side][box], board.neighbours[way][box], corner if open_corner else None]
