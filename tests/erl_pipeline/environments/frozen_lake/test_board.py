from __future__ import annotations

import pytest

from erl_pipeline.environments.frozen_lake.board import Board, parse_board

# S F H
# F F G    cells 0 1 2 / 3 4 5
BOARD = Board(("SFH", "FFG"))


def test_cells_are_counted_row_by_row() -> None:
    assert (BOARD.height, BOARD.width, BOARD.start, BOARD.goal, BOARD.size_name) == (2, 3, 0, 5, "2x3")


def test_moves_stop_at_the_edge() -> None:
    assert BOARD.neighbour(0, "up") == 0
    assert BOARD.neighbour(0, "left") == 0
    assert BOARD.neighbour(0, "right") == 1
    assert BOARD.neighbour(1, "down") == 4
    assert BOARD.neighbour(5, "right") == 5


def test_moves_to_goal_go_around_holes() -> None:
    assert BOARD.moves_to_goal == (3, 2, None, 2, 1, 0)


def test_best_directions_shorten_the_way() -> None:
    assert BOARD.best_directions(0) == ["right", "down"]
    assert BOARD.best_directions(4) == ["right"]


def test_a_good_board_is_parsed() -> None:
    assert parse_board(["SFH", "FFG"]) == BOARD


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the board is empty"),
        ([""], "the board is empty"),
        (["SFF", "FG"], "row 2 has 2 cells, row 1 has 3"),
        (["SF", "XG"], "row 2, column 1: unknown letter 'X'"),
        (["FF", "FG"], r"0 cells S \(start\)"),
        (["SF", "FF"], r"0 cells G \(goal\)"),
        (["SS", "FG"], r"2 cells S \(start\)"),
        (["SG", "FG"], r"2 cells G \(goal\)"),
        (["SH", "HG"], "the goal cannot be reached"),
    ],
)
def test_a_bad_board_says_what_is_wrong(rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_board(rows)
