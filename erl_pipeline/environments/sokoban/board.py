"""Boards: walls, goals, and where player and boxes begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from erl_pipeline.environments.board_twins import shape_of
from erl_pipeline.environments.hidden_words.directions import Direction

LETTERS = {
    "#": "wall",
    "@": "player",
    "+": "player on goal",
    "$": "box",
    "*": "box on goal",
    ".": "goal",
    " ": "floor",
}
"""The usual letters of Sokoban levels."""

_OFFSETS: dict[Direction, tuple[int, int]] = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class State(NamedTuple):
    """What moves on a board. The boxes are in the order of their cells, so that equal states are equal."""

    player: int
    boxes: tuple[int, ...]


@dataclass(frozen=True)
class Board:
    """Rows of the letters in `LETTERS`. A cell is a number: row times width plus column."""

    rows: tuple[str, ...]

    @cached_property
    def height(self) -> int:
        return len(self.rows)

    @cached_property
    def width(self) -> int:
        return len(self.rows[0])

    @cached_property
    def size_name(self) -> str:
        """Height and width, such as `6x6`."""
        return f"{self.height}x{self.width}"

    @cached_property
    def shape(self) -> tuple[str, ...]:
        """What the board has in common with its rotations and mirror images, and with no other board."""
        return shape_of(self.rows)

    @cached_property
    def letters(self) -> str:
        """The letters of all cells, row by row."""
        return "".join(self.rows)

    @cached_property
    def goals(self) -> frozenset[int]:
        return self._cells(".*+")

    @cached_property
    def floor(self) -> tuple[int, ...]:
        """All cells that are no wall, in order."""
        return tuple(cell for cell, letter in enumerate(self.letters) if letter != "#")

    @cached_property
    def start(self) -> State:
        (player,) = self._cells("@+")
        return State(player, tuple(sorted(self._cells("$*"))))

    @cached_property
    def has_border(self) -> bool:
        """Whether there are walls all around."""
        sides = {*self.rows[0], *self.rows[-1], *(row[0] + row[-1] for row in self.rows)}
        return set("".join(sides)) == {"#"}

    @cached_property
    def neighbours(self) -> dict[Direction, tuple[int | None, ...]]:
        """For each direction and cell, the cell beside it; None for a wall, and outside the board."""
        return {
            direction: tuple(self._beside(cell, *offset) for cell in range(len(self.letters)))
            for direction, offset in _OFFSETS.items()
        }

    def is_solved(self, boxes: Sequence[int]) -> bool:
        """Whether every box is on a goal."""
        return self.goals.issuperset(boxes)

    def boxes_on_goals(self, boxes: Sequence[int]) -> int:
        return len(self.goals.intersection(boxes))

    def _cells(self, letters: str) -> frozenset[int]:
        return frozenset(cell for cell, letter in enumerate(self.letters) if letter in letters)

    def _beside(self, cell: int, row_offset: int, column_offset: int) -> int | None:
        row, column = divmod(cell, self.width)
        row, column = row + row_offset, column + column_offset
        if not (0 <= row < self.height and 0 <= column < self.width):
            return None
        beside = row * self.width + column
        return None if self.letters[beside] == "#" else beside


def parse_board(rows: Sequence[str]) -> Board:
    """The board of these rows, in which `-` is floor too; raises `ValueError` saying what is wrong with them.

    Whether it can be solved is another question (`solving.require_solvable`).
    """
    if not rows or not rows[0]:
        raise ValueError("the board is empty")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"row {number} has {len(row)} cells, row 1 has {len(rows[0])}; all rows need the same length"
            )
        for column, letter in enumerate(row, start=1):
            if letter not in LETTERS and letter != "-":
                raise ValueError(
                    f"row {number}, column {column}: unknown letter {letter!r}; allowed are # @ + $ * . and "
                    "for floor a space or -"
                )
    letters = "".join(rows)
    players, boxes, goals = (sum(letters.count(each) for each in group) for group in ("@+", "$*", ".*+"))
    if players != 1:
        raise ValueError(f"players (@ or +): {players}; a board needs one")
    if boxes == 0:
        raise ValueError("the board has no box ($ or *)")
    if boxes != goals:
        raise ValueError(
            f"boxes ($ or *): {boxes}, goals (. * or +): {goals}; a board needs as many goals as boxes"
        )
    board = Board(tuple(row.replace("-", " ") for row in rows))
    if board.is_solved(board.start.boxes):
        raise ValueError("all boxes are on goals already")
    return board
