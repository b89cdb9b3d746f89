"""The short format, on a board whose texts are worked out by hand."""

from __future__ import annotations

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.board import Board
from erl_pipeline.environments.frozen_lake.game import FrozenLake, game_of
from erl_pipeline.environments.frozen_lake.gold import gold_answer
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.short import aimed_way, short_answer, short_reflection
from erl_pipeline.environments.frozen_lake.world import Symbols
from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.prompt_format import AttemptReport

SETTINGS = FrozenLakeConfig(
    format="short",
    action_mode="plan",
    action_words=("river", "stone", "cloud", "apple"),
    symbols=("P", ".", "X", "G"),
    rows=(3, 3),
    holes=(1, 2),
    path_length=(2, 4),
)
ROWS = ("FGF", "SHF", "FFF")
ACTIONS = {"river": "up", "apple": "right", "cloud": "down", "stone": "left"}
TASK = Task(
    "task",
    "frozen_lake-3x3",
    "frozen_lake",
    {
        "board": list(ROWS),
        "max_steps": 6,
        "actions": ACTIONS,
        "symbols": {"player": "P", "frozen": ".", "hole": "X", "goal": "G"},
    },
)


def played(answer: str) -> tuple[FrozenLake, float]:
    """An attempt of one answer, and its reward."""
    game = game_of(SETTINGS, TASK)
    game.reset()
    return game, game.step(answer).reward


def test_a_first_attempt_is_told_the_words_and_the_grid() -> None:
    game = game_of(SETTINGS, TASK)
    prompts = ENVIRONMENT.prompts(SETTINGS)
    assert prompts is not None
    assert prompts.attempt(game.instructions, game.reset(), []) == [
        {"role": "system", "content": "Actions: apple cloud river stone"},
        {"role": "user", "content": ". G .\nP X .\n. . ."},
    ]


def test_a_second_attempt_is_told_the_notes_too() -> None:
    prompts = ENVIRONMENT.prompts(SETTINGS)
    assert prompts is not None
    system, user = prompts.attempt("Actions: a b", ". G", ["up: river, left: stone"])
    assert system["content"] == "Actions: a b\nNotes: up: river, left: stone"
    assert user["content"] == ". G"


def test_an_answer_is_places_directions_and_words_of_which_the_words_are_done() -> None:
    """The player is in row 2, column 1, and the goal in row 1, column 2."""
    symbols = Symbols("P", ".", "X", "G")
    words: dict[Direction, str] = {"up": "river", "right": "apple"}
    answer = short_answer(Board(ROWS), symbols, ["up", "right"], words)
    assert answer == "P21 G12: up right [ river apple ]"
    assert gold_answer(SETTINGS, TASK) == [answer]
    assert played(answer)[1] == 1.0
    assert played("P21 G12: down down [ river apple ]")[1] == 1.0
    assert played("P21 G12: up right [ river stones ]")[0].trace() == "no valid action"


def test_a_trace_says_where_each_word_moved() -> None:
    game, reward = played("[stone cloud river apple]")
    assert game.trace() == "stone: no effect\ncloud: down\nriver: up\napple: right into X"
    assert (game.feedback(), reward) == ("Failed: ended on X.", 0.0)


def test_feedback_says_how_the_attempt_ended() -> None:
    assert played("[river apple]")[0].feedback() == "Success: ended on G."
    assert played("[river]")[0].feedback() == "Failed: the plan ended before G."
    assert played("[cloud river cloud river cloud river]")[0].feedback() == "Failed: no steps left."


def test_a_reflection_is_asked_for_with_the_trace_and_what_is_remembered() -> None:
    prompts = ENVIRONMENT.prompts(SETTINGS)
    assert prompts is not None
    report = AttemptReport(". G", "stone: no effect\nriver: up", "Failed: the plan ended before G.", 0.0)
    assert prompts.reflection("Actions: a b", report, ["left: stone"]) == [
        {"role": "system", "content": "Which word moves where?"},
        {"role": "user", "content": "Actions: a b\nNotes: left: stone\nstone: no effect\nriver: up"},
    ]


def test_a_reflection_names_the_words_in_the_order_of_the_directions() -> None:
    assert short_reflection({"left": "stone", "up": "river"}) == "up: river, left: stone"


def test_the_way_that_an_answer_aims_for_is_read_before_its_brackets() -> None:
    assert aimed_way("P21 G12: up right [ river apple ]") == ["up", "right"]
    assert aimed_way("P21 G12: up north [ river apple ]") == []
    assert aimed_way("river apple") == []
