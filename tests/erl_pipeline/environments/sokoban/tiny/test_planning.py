from __future__ import annotations

import random

from erl_pipeline.environments.sokoban.board import Board
from erl_pipeline.environments.sokoban.settings import SokobanConfig
from erl_pipeline.environments.sokoban.tiny.planning import planning_questions, shortest_solution

STRAIGHT = Board(("######", "#@ $.#", "######"))  # right, right: nothing else is as good
CORNER = Board(("#####", "#@  #", "# $ #", "#  .#", "#####"))
SETTINGS = SokobanConfig(rows=(3, 5), columns=(5, 6), inner_walls=(0, 0))


def test_of_a_solution_the_moves_are_known_that_are_best_alone() -> None:
    assert list(shortest_solution(random.Random(0), STRAIGHT)) == [("right", True), ("right", True)]
    # The box has to go right and down: the two ways to begin are as good, and then each has one way to go on.
    ways = {tuple(shortest_solution(random.Random(seed), CORNER)) for seed in range(20)}
    assert ways == {
        (("right", False), ("down", True), ("left", True), ("down", True), ("right", True)),
        (("down", False), ("right", True), ("up", True), ("right", True), ("down", True)),
    }


def test_each_question_asks_for_the_aim_after_the_moves_before_it_with_true_notes() -> None:
    first, second = planning_questions(random.Random(1), SETTINGS, [STRAIGHT])
    assert first.places == second.places == (0,)
    opening, *turns = second.demonstration
    notes = opening["content"].split("notes ")[1].split()  # up, right, down, left
    assert sorted(notes) == ["p", "q", "r", "s"]
    assert [turn["content"] for turn in turns] == [
        f"right {notes[1]}",
        "right c1 c2",
        f"right {notes[1]}",
    ]
    assert list(first.demonstration) == list(second.demonstration[:2])


def test_a_plan_is_one_turn_that_is_asked_for_at_its_aims() -> None:
    plan = SETTINGS.model_copy(update={"action_mode": "plan"})
    (question,) = planning_questions(random.Random(1), plan, [STRAIGHT])
    assert question.places == (0, 2)
    assert question.demonstration[1]["content"].split()[::2] == ["right", "right"]
