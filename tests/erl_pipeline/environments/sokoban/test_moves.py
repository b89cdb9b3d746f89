from __future__ import annotations

from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.moves import Moved, move

# Cells  0  1  2  3  4
#        5  6  7  8  9
BOARD = Board(("@$ $.", "    ."))


def test_the_player_walks() -> None:
    assert move(BOARD, BOARD.start, "down") == Moved("down", State(5, (1, 3)), pushed=False)


def test_a_box_is_pushed_ahead() -> None:
    assert move(BOARD, BOARD.start, "right") == Moved("right", State(1, (2, 3)), pushed=True)


def test_walls_and_boxes_behind_a_box_stop_a_move() -> None:
    assert move(BOARD, BOARD.start, "left") == Moved("wall", BOARD.start, pushed=False)
    side_by_side = State(0, (1, 2))
    assert move(BOARD, side_by_side, "right") == Moved("box_box", side_by_side, pushed=False)
    below = State(6, (1, 3))
    assert move(BOARD, below, "up") == Moved("box_wall", below, pushed=False)


def test_boxes_stay_in_the_order_of_their_cells() -> None:
    assert move(BOARD, State(1, (2, 6)), "down").outcome == "box_wall"
    assert move(BOARD, State(7, (2, 6)), "left") == Moved("left", State(6, (2, 5)), pushed=True)
