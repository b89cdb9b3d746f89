"""Boards and the rules of moving on them, as in `gymnasium.envs.toy_text.frozen_lake` without slipping."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from erl_pipeline.environments.board_twins import shape_of
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS, Direction

LETTERS = {"S": "start", "F": "frozen", "H": "hole", "G": "goal"}

_OFFSETS: dict[Direction, tuple[int, int]] = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


@dataclass(frozen=True)
class Board:
    """Rows of the letters S, F, H, G. A cell is a number: row times width plus column."""

    rows: tuple[str, ...]

    @cached_property
    def height(self) -> int:
        return len(self.rows)

    @cached_property
    def width(self) -> int:
        return len(self.rows[0])

    @cached_property
    def shape(self) -> tuple[str, ...]:
        """What the board has in common with its rotations and mirror images, and with no other board."""
        return shape_of(self.rows)

    @cached_property
    def letters(self) -> str:
        """The letters of all cells, row by row."""
        return "".join(self.rows)

    @cached_property
    def start(self) -> int:
        return self.letters.index("S")

    @cached_property
    def goal(self) -> int:
        return self.letters.index("G")

    @cached_property
    def size_name(self) -> str:
        """Height and width, such as `4x4`."""
        return f"{self.height}x{self.width}"

    def neighbour(self, cell: int, direction: Direction) -> int:
        """The cell that a move leads to; the same cell at the edge."""
        row, column = divmod(cell, self.width)
        row_offset, column_offset = _OFFSETS[direction]
        row, column = row + row_offset, column + column_offset
        if 0 <= row < self.height and 0 <= column < self.width:
            return row * self.width + column
        return cell

    @cached_property
    def moves_to_goal(self) -> tuple[int | None, ...]:
        """For each cell the fewest moves from it to the goal without a hole; None where there is no way."""
        moves: list[int | None] = [None] * len(self.letters)
        moves[self.goal] = 0
        queue = deque([self.goal])
        while queue:
            cell = queue.popleft()
            for direction in DIRECTIONS:
                neighbour = self.neighbour(cell, direction)
                if moves[neighbour] is None and self.letters[neighbour] != "H":
                    moves[neighbour] = (moves[cell] or 0) + 1
                    queue.append(neighbour)
        return tuple(moves)

    def best_directions(self, cell: int) -> list[Direction]:
        """The directions that shorten the way to the goal; empty where there is no way."""
        here = self.moves_to_goal[cell]
        if here is None:
            return []
        return [d for d in DIRECTIONS if self.moves_to_goal[self.neighbour(cell, d)] == here - 1]


def parse_board(rows: Sequence[str]) -> Board:
    """The board of these rows; raises `ValueError` saying what is wrong with them."""
    if not rows or not rows[0]:
        raise ValueError("the board is empty")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise ValueError(
                f"row {number} has {len(row)} cells, row 1 has {len(rows[0])}; all rows need the same length"
            )
        for column, letter in enumerate(row, start=1):
            if letter not in LETTERS:
                raise ValueError(
                    f"row {number}, column {column}: unknown letter {letter!r}; allowed are S, F, H and G"
                )
    letters = "".join(rows)
    for letter in "SG":
        if letters.count(letter) != 1:
            raise ValueError(
                f"the board has {letters.count(letter)} cells {letter} ({LETTERS[letter]}), not one"
            )
    board = Board(tuple(rows))
    if board.moves_to_goal[board.start] is None:
        raise ValueError("the goal cannot be reached from the start")
    return board
