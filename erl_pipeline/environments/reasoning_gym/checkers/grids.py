"""Answers that are grids."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers.reading import listed, missing_and_foreign

Grid = Sequence[Sequence[int]]


def sudoku(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Rows, columns and squares without repeats, and the given numbers in their places."""
    puzzle: Grid = metadata["puzzle"]
    grid = _digits(answer)
    size, side = len(puzzle), isqrt(len(puzzle))
    if not _has_shape(grid, size, size):
        yield _shape_asked(size, size)
        return
    yield from _latin(grid)
    for top in range(0, size, side):
        for left in range(0, size, side):
            cells = [grid[top + row][left + column] for row in range(side) for column in range(side)]
            place = f"The square of rows {top + 1}-{top + side} and columns {left + 1}-{left + side}"
            yield from _repeats(place, cells)
    yield from _changed(puzzle, grid)


def futoshiki(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Rows and columns without repeats, the signs between cells, and the given numbers in their places."""
    puzzle: Grid = metadata["puzzle"]
    grid = _digits(answer)
    size = len(puzzle)
    if not _has_shape(grid, size, size):
        yield _shape_asked(size, size)
        return
    yield from _latin(grid)
    for row, column, other_row, other_column, sign in metadata["constraints"]:
        one, other = grid[row][column], grid[other_row][other_column]
        if not (one < other if sign == "<" else one > other):
            yield (
                f"Row {row + 1}, column {column + 1} has {one} and row {other_row + 1}, column "
                f"{other_column + 1} has {other}, but the sign between them is {sign}."
            )
    yield from _changed(puzzle, grid)


def kakurasu(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The weighted sums of rows and columns."""
    grid = _digits(answer)
    rows, columns = metadata["n_rows"], metadata["n_cols"]
    if not _has_shape(grid, rows, columns):
        yield _shape_asked(rows, columns)
        return
    if any(cell > 1 for row in grid for cell in row):
        yield "Every cell should be 0 or 1."
        return
    for number, (row, asked) in enumerate(zip(grid, metadata["row_sums"], strict=True), start=1):
        yield from _sum("Row", number, _weighted(row), asked)
    for number, (column, asked) in enumerate(
        zip(zip(*grid, strict=True), metadata["col_sums"], strict=True), start=1
    ):
        yield from _sum("Column", number, _weighted(column), asked)


def survo(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The sums of rows and columns, and the use of the numbers to be placed."""
    puzzle: Grid = metadata["puzzle"]
    size = len(puzzle)
    grid = [
        [int(number) for number in re.findall(r"-?[0-9]{1,6}", line)]
        for line in answer.splitlines()
        if line.strip()
    ]
    if not _has_shape(grid, size, size):
        yield _shape_asked(size, size)
        return
    yield from _changed(puzzle, grid)
    placed = [grid[row][column] for row in range(size) for column in range(size) if puzzle[row][column] == 0]
    missing, foreign = missing_and_foreign(metadata["candidate_numbers"], placed)
    if missing:
        yield f"Not placed: {listed(missing)}."
    if foreign:
        yield f"Placed too often, or not among the numbers to place: {listed(foreign)}."
    for number, row in enumerate(grid[:-1], start=1):
        yield from _sum("Row", number, sum(row[:-1]), row[-1])
    for number, column in enumerate(list(zip(*grid, strict=True))[:-1], start=1):
        yield from _sum("Column", number, sum(column[:-1]), column[-1])


def n_queens(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Queens that attack each other, their number, and those that were given."""
    puzzle: Sequence[Sequence[str]] = metadata["puzzle"]
    size = len(puzzle)
    board = [line.split() for line in answer.splitlines() if line.strip()]
    if len(board) != size or any(len(row) != size for row in board):
        yield f"The board should have {size} rows of {size} cells, with spaces between them."
        return
    if any(cell not in ("Q", "_") for row in board for cell in row):
        yield "Every cell should be Q or _."
        return
    queens = [(row, column) for row in range(size) for column in range(size) if board[row][column] == "Q"]
    if len(queens) != size:
        yield f"The board has {len(queens)} queens instead of {size}."
    for row in range(size):
        for column in range(size):
            if puzzle[row][column] == "Q" and board[row][column] != "Q":
                yield f"The queen that was given in row {row + 1}, column {column + 1} is gone."
    for place, (row, column) in enumerate(queens):
        for other_row, other_column in queens[place + 1 :]:
            if (
                row == other_row
                or column == other_column
                or abs(row - other_row) == abs(column - other_column)
            ):
                yield (
                    f"The queens in row {row + 1}, column {column + 1} and row {other_row + 1}, column "
                    f"{other_column + 1} attack each other."
                )


def _digits(answer: str) -> list[list[int]]:
    """The digits of each line that has any; other signs are left out, as the scorers do."""
    rows = [[int(sign) for sign in line if sign in "0123456789"] for line in answer.splitlines()]
    return [row for row in rows if row]


def _has_shape(grid: Grid, rows: int, columns: int) -> bool:
    return len(grid) == rows and all(len(row) == columns for row in grid)


def _shape_asked(rows: int, columns: int) -> str:
    return f"The answer should have {rows} rows of {columns} numbers."


def _latin(grid: Grid) -> Iterator[str]:
    """Numbers out of range, and repeats in rows and columns."""
    foreign = sorted({cell for row in grid for cell in row if not 1 <= cell <= len(grid)})
    if foreign:
        yield f"Numbers are from 1 to {len(grid)}, but the answer has {listed(foreign)}."
    for number, row in enumerate(grid, start=1):
        yield from _repeats(f"Row {number}", row)
    for number, column in enumerate(zip(*grid, strict=True), start=1):
        yield from _repeats(f"Column {number}", column)


def _repeats(place: str, cells: Sequence[int]) -> Iterator[str]:
    repeated = sorted({cell for cell in cells if cells.count(cell) > 1})
    if repeated:
        yield f"{place} has {listed(repeated)} more than once."


def _changed(puzzle: Grid, grid: Grid) -> Iterator[str]:
    for row, (given, found) in enumerate(zip(puzzle, grid, strict=True), start=1):
        for column, (was, is_now) in enumerate(zip(given, found, strict=True), start=1):
            if was not in (0, is_now):
                yield f"Row {row}, column {column} was given as {was}, but the answer has {is_now}."


def _weighted(cells: Sequence[int]) -> int:
    return sum(place * cell for place, cell in enumerate(cells, start=1))


def _sum(kind: str, number: int, found: int, asked: int) -> Iterator[str]:
    if found != asked:
        yield f"{kind} {number} has the sum {found} instead of {asked}."
