from __future__ import annotations

import random

from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.sokoban.board import Board, State
from erl_pipeline.environments.sokoban.steps import Action, Step
from erl_pipeline.environments.sokoban.tiny.player import ScriptedPlayer

WORDS = ("p", "q", "r", "s")
TRUTH: dict[Direction, str] = {"up": "p", "right": "q", "down": "r", "left": "s"}


def player(
    board: Board, notes: dict[Direction, str], random_intent: float = 0.0, seed: int = 0
) -> ScriptedPlayer:
    return ScriptedPlayer(random.Random(seed), board, WORDS, notes, random_intent)


def test_with_full_notes_it_carries_the_shortest_solution_out() -> None:
    """It moves to the other side of the box, and pushes once."""
    walker = player(Board((".$ ", "@  ")), TRUTH)
    assert walker.plan(max_steps=6) == "right q right q up p left s"
    assert walker.plan(max_steps=2) == "right q right q"
    assert walker.move() == "right q"


def test_it_keeps_to_what_it_has_seen() -> None:
    """The word that moved left is never used for right again."""
    board = Board((" @$.",))
    for seed in range(20):
        walker = player(board, {}, seed=seed)
        walker.learn(Step(Action("s", "right"), "left", State(0, (2,))))
        aim, word = walker.move().split()
        assert aim == "right"
        assert word != "s"


def test_what_a_move_ran_against_says_which_directions_it_can_have_been() -> None:
    """Above is a wall, to the left a box with a wall behind it: each outcome leaves only one meaning of the
    word."""
    board = Board(("#######", "#$@ $.#", "#     #", "#    .#", "#######"))
    for seed in range(10):
        walker = player(board, {}, seed=seed)
        walker.learn(Step(Action("p", "right"), "wall", board.start))
        walker.learn(Step(Action("s", "right"), "box_wall", board.start))
        walker.learn(Step(Action("q", "right"), "right", State(10, board.start.boxes)))
        walker.learn(Step(Action("s", "right"), "left", State(9, board.start.boxes)))
        said = walker.plan(max_steps=20).split()
        assert len(said) > 2
        assert set(zip(said[::2], said[1::2], strict=True)) <= set(TRUTH.items())


def test_a_turn_without_action_teaches_nothing() -> None:
    walker = player(Board(("@$.",)), TRUTH)
    walker.learn(Step(None, "bad", State(0, (1,))))
    assert walker.move() == "right q"


def test_of_the_worlds_that_are_left_it_believes_what_agrees_with_most_notes() -> None:
    """The notes have right and left swapped. Once `s` has moved left, those for up and down still hold."""
    notes: dict[Direction, str] = {"up": "p", "right": "s", "down": "r", "left": "q"}
    for seed in range(20):
        walker = player(Board(("  @ $.",)), notes, seed=seed)
        assert walker.move() == "right s"
        walker.learn(Step(Action("s", "right"), "left", State(1, (4,))))
        assert walker.move() == "right q"


def test_without_a_solution_it_goes_anywhere() -> None:
    walker = player(Board(("   ", " $@", " . ")), TRUTH)
    walker.learn(Step(Action("s", "left"), "left", State(4, (3,))))
    assert {walker.move().split()[0] for _ in range(100)} == {"up", "right", "down", "left"}


def test_random_intent_aims_in_all_directions() -> None:
    walker = player(Board(("@$.",)), TRUTH, random_intent=1.0)
    assert {walker.move() for _ in range(100)} == {"up p", "right q", "down r", "left s"}
