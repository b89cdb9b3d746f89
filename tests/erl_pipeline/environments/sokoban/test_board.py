from __future__ import annotations

from itertools import permutations

import pytest

from erl_pipeline.environments.sokoban.board import (
    SokobanBoard,
    State,
    deadlocks,
    parse_board,
    push_distances,
    require_solvable,
    solution_length,
)
from erl_pipeline.environments.sokoban.tiny import Solutions

# Cells  0  1  2  3  4
#        5  6  7  8  9
#       10 11 12 13 14
BOARD = SokobanBoard(("#####", "#@$.#", "#####"))


def test_cells_are_counted_row_by_row() -> None:
    assert (BOARD.height, BOARD.width, BOARD.size_name) == (3, 5, "3x5")
    assert BOARD.start == State(player=6, boxes=(7,))
    assert BOARD.goals == {8}


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


# Cells  0  1  2  3  4
#        5  6  7  8  9
TWO_BOXES = SokobanBoard(("@$ $.", "    ."))


def test_the_player_walks() -> None:
    assert TWO_BOXES.move(TWO_BOXES.start, "down") == ("down", State(5, (1, 3)))


def test_a_box_is_pushed_ahead() -> None:
    assert TWO_BOXES.move(TWO_BOXES.start, "right") == ("right", State(1, (2, 3)))


def test_walls_and_boxes_behind_a_box_stop_a_move() -> None:
    assert TWO_BOXES.move(TWO_BOXES.start, "left") == ("wall", TWO_BOXES.start)
    side_by_side = State(0, (1, 2))
    assert TWO_BOXES.move(side_by_side, "right") == ("box_box", side_by_side)
    below = State(6, (1, 3))
    assert TWO_BOXES.move(below, "up") == ("box_wall", below)


def test_boxes_stay_in_the_order_of_their_cells() -> None:
    assert TWO_BOXES.move(State(1, (2, 6)), "down")[0] == "box_wall"
    assert TWO_BOXES.move(State(7, (2, 6)), "left") == ("left", State(6, (2, 5)))


def of(*rows: str) -> list[str]:
    board = SokobanBoard(rows)
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
    board = SokobanBoard(rows)
    named = 0
    for box in (cell for cell, letter in enumerate(board.letters) if letter != "#"):
        state = "".join(
            "$" if cell == box else letter for cell, letter in enumerate(board.letters.replace("$", " "))
        )
        if state.count("@") != 1 or state.count(".") != 1:
            continue
        placed = SokobanBoard(
            tuple(state[start : start + board.width] for start in range(0, len(state), board.width))
        )
        if deadlocks(placed, placed.start.boxes):
            named += 1
            assert solution_length(placed) is None
    assert named > 4


def test_a_push_and_a_walk_around_are_counted() -> None:
    assert solution_length(SokobanBoard(("@$.",))) == 1
    assert solution_length(SokobanBoard(("@$ .",))) == 2
    # Down, right, right and up to the other side of the box, then one push.
    assert solution_length(SokobanBoard((".$ ", "@  "))) == 4
    assert solution_length(SokobanBoard(("  @", ".$ ", "   "))) == 2


def test_a_board_without_a_solution_has_none() -> None:
    assert solution_length(SokobanBoard(("$@.",))) is None


def test_a_limit_cuts_longer_solutions_off() -> None:
    board = SokobanBoard((".$ ", "@  "))
    assert solution_length(board, most=3) is None
    assert solution_length(board, most=4) == 4


def test_two_boxes_go_to_either_goal() -> None:
    assert solution_length(SokobanBoard(("  .  ", " @$  ", "  $  ", "  .  "))) is not None
    assert solution_length(SokobanBoard(("@$.$.",))) is None  # the second box is behind the first
    assert solution_length(SokobanBoard(("@$. ", " $. "))) == 4  # push, back left, down, push


def test_push_distances_are_of_a_box_alone() -> None:
    # Cells 0 to 4. A box in 0 has no room for the player behind it.
    assert push_distances(SokobanBoard(("@ $ .",))) == {4: 0, 3: 1, 2: 2, 1: 3}


def test_as_many_six_by_six_boards_are_solvable_in_eight_moves_as_the_paper_has() -> None:
    """The paper's training set has every 6x6 layout with one box that can be solved in 8 moves: 1,136."""
    inside = [6 * row + column for row in range(1, 5) for column in range(1, 5)]
    solvable = 0
    for player, box, goal in permutations(inside, 3):
        letters = list("######" + "#    #" * 4 + "######")
        letters[player], letters[box], letters[goal] = "@$."
        board = SokobanBoard(tuple("".join(letters[start : start + 6]) for start in range(0, 36, 6)))
        solvable += solution_length(board, most=8) is not None
    assert solvable == 1136


def test_best_directions_lead_along_all_shortest_solutions() -> None:
    # Cells 0 1 2 / 3 4 5; the box in 1 has to go to 0.
    solutions = Solutions(SokobanBoard((".$ ", "@  ")))
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
