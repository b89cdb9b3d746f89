from __future__ import annotations

import pytest

from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.deadlocks import deadlocks
from erl_pipeline.environments.sokoban.solving import solution_length


def of(*rows: str) -> list[str]:
    board = Board(rows)
    return list(deadlocks(board, board.start.boxes))


def test_a_box_in_the_open_is_in_no_deadlock() -> None:
    assert of("    ", " $@.", "    ") == []


def test_a_corner_that_is_no_goal() -> None:
    assert of("$  ", " @ ", "  .") == ["corner"]
    assert of("*  ", " @ ", "  .") == []  # it is where it should be


def test_a_corner_of_inner_walls() -> None:
    assert of("     ", " @#  ", " $#. ", "  #  ", "     ") == []
    assert of("     ", " @#  ", " # $#", "  ## ", "  .  ")[:1] == ["corner"]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ((" $  ", "@  .", "    "), ["wall"]),  # it can be pushed to the left and right only
        ((" $ .", "@   ", "    "), []),  # a goal along the wall
        (
            (" $$.", "@   ", ".   "),
            ["wall", "square"],
        ),  # two boxes, one goal; beside each other they are stuck
        (("$  .", "@   ", "    "), ["corner"]),
    ],
)
def test_a_wall_without_a_goal(rows: tuple[str, ...], names: list[str]) -> None:
    assert of(*rows) == names


def test_a_wall_with_a_gap_can_be_left() -> None:
    """Above the box is a wall with an opening next to it; from below the opening the box can be pushed up."""
    assert of("## ###", "# $ @#", "#   .#", "######") == []


def test_two_boxes_beside_each_other_at_a_wall() -> None:
    """There are enough goals along the wall, but neither box can be moved any more."""
    assert of(".$$.", "@   ", "    ") == ["square"]


def test_four_boxes_in_a_square() -> None:
    assert of("      ", " $$   ", " $$ @ ", "....  ", "      ") == ["square"]


def test_boxes_in_a_square_that_are_all_on_goals_are_in_none() -> None:
    assert of("      ", " **   ", " ** @ ", "   $  ", "  .   ") == []


@pytest.mark.parametrize("rows", [("     ", " $@. ", "     ", "     "), ("     ", "  $  ", " @#. ", "     ")])
def test_a_named_deadlock_has_no_solution(rows: tuple[str, ...]) -> None:
    """Wherever the box of a small board is, a deadlock is named only if a search finds no solution."""
    board = Board(rows)
    named = 0
    for box in board.floor:
        state = "".join(
            "$" if cell == box else letter for cell, letter in enumerate(board.letters.replace("$", " "))
        )
        if state.count("@") != 1 or state.count(".") != 1:
            continue
        placed = Board(
            tuple(state[start : start + board.width] for start in range(0, len(state), board.width))
        )
        if deadlocks(placed, placed.start.boxes):
            named += 1
            assert solution_length(placed) is None
    assert named > 4
