from __future__ import annotations

from itertools import permutations

import pytest

from erl_pipeline.environments.sokoban.board import Board, State, parse_board
from erl_pipeline.environments.sokoban.solving import (
    Solutions,
    push_distances,
    require_solvable,
    solution_length,
)


def test_a_push_and_a_walk_around_are_counted() -> None:
    assert solution_length(Board(("@$.",))) == 1
    assert solution_length(Board(("@$ .",))) == 2
    # Down, right, right and up to the other side of the box, then one push.
    assert solution_length(Board((".$ ", "@  "))) == 4
    assert solution_length(Board(("  @", ".$ ", "   "))) == 2


def test_a_board_without_a_solution_has_none() -> None:
    assert solution_length(Board(("$@.",))) is None


def test_a_limit_cuts_longer_solutions_off() -> None:
    board = Board((".$ ", "@  "))
    assert solution_length(board, most=3) is None
    assert solution_length(board, most=4) == 4


def test_two_boxes_go_to_either_goal() -> None:
    assert solution_length(Board(("  .  ", " @$  ", "  $  ", "  .  "))) is not None
    assert solution_length(Board(("@$.$.",))) is None  # the second box is behind the first
    assert solution_length(Board(("@$. ", " $. "))) == 4  # push, back left, down, push


def test_push_distances_are_of_a_box_alone() -> None:
    # Cells 0 to 4. A box in 0 has no room for the player behind it.
    assert push_distances(Board(("@ $ .",))) == {4: 0, 3: 1, 2: 2, 1: 3}


def test_as_many_six_by_six_boards_are_solvable_in_eight_moves_as_the_paper_has() -> None:
    """The paper's training set has every 6x6 layout with one box that can be solved in 8 moves: 1,136."""
    inside = [6 * row + column for row in range(1, 5) for column in range(1, 5)]
    solvable = 0
    for player, box, goal in permutations(inside, 3):
        letters = list("######" + "#    #" * 4 + "######")
        letters[player], letters[box], letters[goal] = "@$."
        board = Board(tuple("".join(letters[start : start + 6]) for start in range(0, 36, 6)))
        solvable += solution_length(board, most=8) is not None
    assert solvable == 1136


def test_best_directions_lead_along_all_shortest_solutions() -> None:
    # Cells 0 1 2 / 3 4 5; the box in 1 has to go to 0.
    solutions = Solutions(Board((".$ ", "@  ")))
    assert solutions.best_directions(State(3, (1,))) == ["right"]
    assert solutions.best_directions(State(4, (1,))) == ["right"]
    assert solutions.best_directions(State(5, (1,))) == ["up"]
    assert solutions.best_directions(State(2, (1,))) == ["left"]
    assert solutions.best_directions(State(1, (0,))) == []  # solved
    assert solutions.best_directions(State(1, (2,))) == []  # lost, if it could be reached


@pytest.mark.parametrize(
    ("rows", "max_steps", "message"),
    [
        (["$ .", " @ "], 8, r"begins with a deadlock \(corner\)"),
        ([" $  ", "@  .", "    "], 8, r"begins with a deadlock \(wall\)"),
        (["@$  ."], 2, "needs at least 3 moves, but max_steps is 2"),
        ([".$ ", "@  "], 3, "needs 4 moves, but max_steps is 3"),
        ([" #.", " $@", "  #"], 8, "a box can be pushed to no goal"),
        (["  #@ ", " $  .", "  #  "], 8, "the board cannot be solved$"),
    ],
)
def test_a_board_that_cannot_be_solved_in_time_is_refused(
    rows: list[str], max_steps: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        require_solvable(parse_board(rows), max_steps)


def test_a_board_that_can_be_solved_in_time_is_not() -> None:
    require_solvable(parse_board([".$ ", "@  "]), 4)
