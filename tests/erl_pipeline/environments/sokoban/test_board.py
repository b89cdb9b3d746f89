from __future__ import annotations

import pytest

from erl_pipeline.environments.sokoban.board import Board, State, parse_board

# Cells  0  1  2  3  4
#        5  6  7  8  9
#       10 11 12 13 14
BOARD = Board(("#####", "#@$.#", "#####"))


def test_cells_are_counted_row_by_row() -> None:
    assert (BOARD.height, BOARD.width, BOARD.size_name) == (3, 5, "3x5")
    assert BOARD.start == State(player=6, boxes=(7,))
    assert BOARD.goals == {8}
    assert BOARD.floor == (6, 7, 8)


def test_beside_a_cell_is_another_one_or_a_wall() -> None:
    assert BOARD.neighbours["right"][6] == 7
    assert BOARD.neighbours["right"][8] is None
    assert BOARD.neighbours["up"][6] is None


def test_all_around_a_board_without_border_are_walls() -> None:
    board = parse_board(["@$."])
    assert not board.has_border
    assert BOARD.has_border
    assert board.neighbours["left"][0] is None
    assert board.neighbours["right"][2] is None


def test_letters_of_what_stands_on_goals() -> None:
    board = parse_board(["+$*.", "$---"])
    assert board.rows == ("+$*.", "$   ")
    assert board.goals == {0, 2, 3}
    assert board.start == State(player=0, boxes=(1, 2, 4))
    assert board.boxes_on_goals(board.start.boxes) == 1
    assert board.is_solved((0, 2, 3))
    assert not board.is_solved((1, 2, 3))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the board is empty"),
        ([""], "the board is empty"),
        (["@$.", "  "], "row 2 has 2 cells, row 1 has 3"),
        (["@$.", " x "], "row 2, column 2: unknown letter 'x'; allowed are # @"),
        ([" $."], "players .*: 0; a board needs one"),
        (["@$.", "+$ "], "players .*: 2; a board needs one"),
        (["@  "], "the board has no box"),
        (["@$ "], "boxes .*: 1, goals .*: 0; a board needs as many"),
        (["@$..*"], "boxes .*: 2, goals .*: 3; a board needs as many"),
        (["@* "], "all boxes are on goals already"),
    ],
)
def test_a_bad_board_says_what_is_wrong(rows: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_board(rows)
