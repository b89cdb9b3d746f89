from __future__ import annotations

import random

from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.steps import Action, Step
from erl_pipeline.environments.frozen_lake.tiny.player import ScriptedPlayer
from erl_pipeline.environments.hidden_words.directions import Direction

WORDS = ("a", "b", "c", "d")
TRUTH: dict[Direction, str] = {"up": "a", "right": "b", "down": "c", "left": "d"}


def player(board: Board, notes: dict[Direction, str], random_intent: float = 0.0) -> ScriptedPlayer:
    return ScriptedPlayer(random.Random(0), board, WORDS, notes, random_intent)


def test_with_full_notes_it_walks_the_shortest_path() -> None:
    walker = player(Board(("SHG", "FFF")), TRUTH)
    assert walker.plan(max_steps=6) == "down c right b right b up a"
    assert walker.move() == "down c"


def test_it_keeps_to_what_it_has_seen() -> None:
    """Only right leads towards the goal. The word that moved left is never used for right again."""
    board = Board(("FSG",))
    for seed in range(20):
        walker = ScriptedPlayer(random.Random(seed), board, WORDS, {}, 0.0)
        walker.learn(Step(Action("d", "right"), "left", 0))
        assert walker.move().split()[0] == "right"
        assert walker.move().split()[1] != "d"


def test_a_bump_rules_out_the_directions_that_lead_somewhere() -> None:
    """In the corner of a single row only right moves: a word that bumped cannot be right."""
    for seed in range(20):
        walker = ScriptedPlayer(random.Random(seed), Board(("SFG",)), WORDS, {}, 0.0)
        walker.learn(Step(Action("b", "right"), "bump", 0))
        aim, word = walker.move().split()
        assert aim == "right"
        assert word != "b"


def test_of_the_worlds_that_are_left_it_believes_what_agrees_with_most_notes() -> None:
    """The notes have right and left swapped. Once `d` has moved right, the notes for right and left are
    refuted, and those for up and down still hold."""
    notes: dict[Direction, str] = {"up": "a", "right": "d", "down": "c", "left": "b"}
    for seed in range(20):
        walker = ScriptedPlayer(random.Random(seed), Board(("FSFG",)), WORDS, notes, 0.0)
        assert walker.move() == "right d"
        walker.learn(Step(Action("d", "right"), "left", 0))
        assert walker.move() == "right b"


def test_a_refuted_note_leaves_the_others_standing() -> None:
    """The notes say that `a` moves up, but it moved down: `c`, which the notes have for down, is the best
    guess for up."""
    notes: dict[Direction, str] = {"up": "a", "down": "c"}
    board = Board(("FSF", "FFF", "FGF"))
    beliefs = set()
    for seed in range(40):
        walker = ScriptedPlayer(random.Random(seed), board, WORDS, notes, 0.0)
        walker.learn(Step(Action("a", "up"), "down", 4))
        beliefs.add(walker.move())
    assert beliefs == {"down a"}


def test_random_intent_aims_in_all_directions() -> None:
    walker = player(Board(("SFG",)), TRUTH, random_intent=1.0)
    assert {walker.move() for _ in range(100)} == {"up a", "right b", "down c", "left d"}
