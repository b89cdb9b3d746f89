"""Answers that are grids, moves or graphs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers import words_and_numbers

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
    missing, foreign = words_and_numbers.missing_and_foreign(metadata["candidate_numbers"], placed)
    if missing:
        yield f"Not placed: {words_and_numbers.listed(missing)}."
    if foreign:
        yield f"Placed too often, or not among the numbers to place: {words_and_numbers.listed(foreign)}."
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
        yield f"Numbers are from 1 to {len(grid)}, but the answer has {words_and_numbers.listed(foreign)}."
    for number, row in enumerate(grid, start=1):
        yield from _repeats(f"Row {number}", row)
    for number, column in enumerate(zip(*grid, strict=True), start=1):
        yield from _repeats(f"Column {number}", column)


def _repeats(place: str, cells: Sequence[int]) -> Iterator[str]:
    repeated = sorted({cell for cell in cells if cells.count(cell) > 1})
    if repeated:
        yield f"{place} has {words_and_numbers.listed(repeated)} more than once."


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


def graph_color(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """A colour for each vertex, and different ones at the ends of each edge."""
    puzzle = metadata["puzzle"]
    colours = words_and_numbers.json_value(answer)
    if not isinstance(colours, dict):
        yield "The answer should be a JSON map of vertices to colors."
        return
    missing = [vertex for vertex in puzzle["vertices"] if str(vertex) not in colours]
    if missing:
        yield f"These vertices have no color: {words_and_numbers.listed(missing)}."
        return
    foreign = [vertex for vertex in puzzle["vertices"] if colours[str(vertex)] not in puzzle["color_options"]]
    if foreign:
        yield f"These vertices have a color that is not possible: {words_and_numbers.listed(foreign)}."
    for one, other in puzzle["edges"]:
        if colours[str(one)] == colours[str(other)]:
            yield f"Vertices {one} and {other} are joined by an edge and have the same color."


_MOST_MOVES = 1_000
_MOST_PRESSES = 100
_DIRECTIONS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
_HANOI_MOVE = re.compile(r"Move disk (\d{1,3}) from Peg (\d{1,3}) to Peg (\d{1,3})")


def jugs(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """What the jugs hold after all moves."""
    listed_moves = words_and_numbers.strings(words_and_numbers.json_value(answer))
    if listed_moves is None or len(listed_moves) > _MOST_MOVES:
        yield 'The answer should be a JSON list of moves such as ["fill A"].'
        return
    capacities: Sequence[int] = metadata["puzzle"]["jug_capacities"]
    names = [chr(ord("A") + number) for number in range(len(capacities))]
    held = dict.fromkeys(names, 0)
    capacity = dict(zip(names, capacities, strict=True))
    for number, move in enumerate(listed_moves, start=1):
        match = re.fullmatch(r"(fill|empty) ([A-Z])|pour ([A-Z])->([A-Z])", move.strip())
        used = [name for name in match.groups()[1:] if name is not None] if match is not None else []
        if match is None or not set(used) <= set(names):
            yield f"Move {number} ({move[:40]}) is none of fill X, empty X and pour X->Y with the jugs here."
            return
        if match.group(1) is not None:
            held[used[0]] = capacity[used[0]] if match.group(1) == "fill" else 0
        else:
            source, into = used
            poured = min(held[source], capacity[into] - held[into])
            held[source] -= poured
            held[into] += poured
    target = metadata["puzzle"]["target"]
    if target not in held.values():
        amounts = ", ".join(f"{name}: {amount}" for name, amount in held.items())
        yield f"After all moves the jugs hold {amounts}, and none holds {target}."


def tower_of_hanoi(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The first move that breaks a rule, or what is missing at the end."""
    pegs: dict[int, list[int]] = {number: [] for number in range(1, metadata["num_pegs"] + 1)}
    pegs[metadata["start_peg"]] = list(range(metadata["num_disks"], 0, -1))
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    for number, line in enumerate(lines, start=1):
        match = _HANOI_MOVE.fullmatch(line)
        if match is None:
            yield f"Line {number} is not of the form Move disk X from Peg Y to Peg Z."
            return
        disk, source, into = map(int, match.groups())
        if source not in pegs or into not in pegs:
            yield f"Move {number} names a peg that does not exist."
            return
        if not pegs[source] or pegs[source][-1] != disk:
            yield f"Move {number}: disk {disk} is not on top of peg {source}."
            return
        if pegs[into] and pegs[into][-1] < disk:
            yield f"Move {number} puts disk {disk} on the smaller disk {pegs[into][-1]}."
            return
        pegs[into].append(pegs[source].pop())
    there, asked = len(pegs[metadata["target_peg"]]), metadata["num_disks"]
    if there < asked:
        yield f"After all moves {there} of {asked} disks are on peg {metadata['target_peg']}."


def shortest_path(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The first step that is not possible, or whether the path ends at the destination."""
    matrix: Sequence[Sequence[str]] = metadata["matrix"]
    steps = answer.split()
    if steps == ["infeasible"]:
        return
    row, column = next(
        (row, column) for row, cells in enumerate(matrix) for column, cell in enumerate(cells) if cell == "*"
    )
    for number, step in enumerate(steps, start=1):
        if step not in _DIRECTIONS:
            yield f"Step {number} ({step[:40]}) is none of up, down, left and right."
            return
        down, right = _DIRECTIONS[step]
        row, column = row + down, column + right
        if not (0 <= row < len(matrix) and 0 <= column < len(matrix[0])):
            yield f"Step {number} ({step}) leaves the grid."
            return
        if matrix[row][column] == "X":
            yield f"Step {number} ({step}) enters a blocked cell."
            return
    if matrix[row][column] != "#":
        yield f"After {len(steps)} steps the path is not at the destination."


def quantum_lock(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The number that the presses lead to. A button that does not work at the light's colour does nothing."""
    presses = re.findall("[A-C]", answer.upper())
    if len(presses) > _MOST_PRESSES:
        return
    buttons = {button["name"]: button for button in metadata["buttons"]}
    value, light = metadata["initial_value"], metadata["initial_state"]
    for press in presses:
        button = buttons.get(press)
        if button is None or button["active_state"] not in (light, "any"):
            continue
        value = {
            "add": value + button["value"],
            "subtract": value - button["value"],
            "multiply": value * button["value"],
        }[button["type"]]
        light = "green" if light == "red" else "red"
    if value != metadata["target_value"]:
        yield f"These buttons lead to {value} instead of {metadata['target_value']}."
