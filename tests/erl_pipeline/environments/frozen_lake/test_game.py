"""The short format, on a board whose texts are worked out by hand."""

from __future__ import annotations

import asyncio
import random
import re

import gymnasium
import pytest

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.game import (
    FrozenLake,
    FrozenLakeBoard,
    FrozenLakeSymbols,
    game_of,
    parse_board,
    short_answer,
)
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS, gold_answer
from erl_pipeline.environments.frozen_lake.warm_start import aimed_way, short_reflection
from erl_pipeline.environments.grid_games.boards import DIRECTIONS, Direction
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.prompt_format import AttemptReport

# S F H
# F F G    cells 0 1 2 / 3 4 5
BOARD = FrozenLakeBoard(("SFH", "FFG"))


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


ROWS = ("SFH", "FFG")
ACTIONS = {"a": "up", "b": "right", "c": "down", "d": "left"}
SYMBOLS = {"player": "@", "frozen": "#", "hole": "$", "goal": "&"}
GYMNASIUM_ACTIONS = {"left": 0, "down": 1, "right": 2, "up": 3}


def config(**changes: object) -> FrozenLakeConfig:
    return FrozenLakeConfig.model_validate(
        {"rows": (2, 2), "columns": (3, 3), "path_length": (1, 3), "max_steps": 4} | changes
    )


def opened(rows: tuple[str, ...] = ROWS, **changes: object) -> FrozenLake:
    settings = config(**changes)
    payload = {"board": list(rows), "max_steps": settings.max_steps, "actions": ACTIONS, "symbols": SYMBOLS}
    return game_of(settings, Task("task", "frozen_lake-2x3", "frozen_lake", payload))


def test_a_successful_attempt_in_compact_form() -> None:
    env = opened()
    assert env.reset() == "@ # $ # # &"
    moved = env.step("right b")
    assert (moved.observation, moved.reward, moved.done, moved.valid) == ("right c1", 0.0, False, True)
    env.step("down c")
    end = env.step("right b")
    assert (end.observation, end.reward, end.done, end.valid) == ("goal c5", 1.0, True, True)
    assert env.trace() == "right b right c1 down c down c4 right b goal c5 . . . ."
    assert env.feedback() == "goal"


def test_a_smaller_board_stands_at_the_top_left_of_the_frame() -> None:
    env = opened(columns=(3, 4))
    assert env.reset() == "@ # $ . # # & ."
    # Its second row begins behind four places of the frame.
    assert env.step("down c").observation == "down c4"
    env.step("right b")
    assert env.step("right b").observation == "goal c6"
    assert env.trace() == "down c down c4 right b right c5 right b goal c6 . . . ."


def test_the_outcome_is_the_direction_really_moved_not_the_one_aimed_for() -> None:
    env = opened()
    env.reset()
    assert env.step("down b").observation == "right c1"


def test_a_hole_ends_the_attempt_without_reward() -> None:
    env = opened()
    env.reset()
    env.step("right b")
    end = env.step("right b")
    assert (end.observation, end.reward, end.done) == ("fell c2", 0.0, True)
    assert env.feedback() == "fell"


def test_the_edge_and_invalid_answers_cost_a_step_and_move_nothing() -> None:
    env = opened()
    env.reset()
    assert env.step("up a").observation == "bump c0"
    for text in ("a", "up x", "sideways a", "up a up a"):
        if env.trace().split()[-1] != ".":
            break
        transition = env.step(text)
        assert (transition.observation, transition.valid, transition.reward) == ("bad c0", False, 0.0)
    assert env.feedback() == "lost"
    assert env.trace() == "up a bump c0 . . bad c0 . . bad c0 . . bad c0"


def test_an_attempt_that_is_over_takes_no_more_steps_until_reset() -> None:
    env = opened(rows=("SGH", "FFF"))
    env.reset()
    with pytest.raises(RuntimeError, match="not over"):
        env.feedback()
    assert env.step("right b").done
    with pytest.raises(RuntimeError, match="over"):
        env.step("right b")
    assert env.reset() == "@ & $ # # #"
    assert env.trace() == " ".join(["."] * 16)


def test_a_plan_is_carried_out_in_one_turn() -> None:
    env = opened(action_mode="plan")
    env.reset()
    end = env.step("right b down c right b up a")
    assert (end.reward, end.done, end.valid) == (1.0, True, True)
    assert env.trace().split()[-4:] == ["."] * 4  # actions after the goal are ignored


def test_a_plan_that_ends_early_is_a_failure_and_said_to_be_one() -> None:
    compact, prose = opened(action_mode="plan"), opened(action_mode="plan", format="prose")
    compact.reset()
    prose.reset()
    assert compact.step("right b").done
    assert compact.feedback() == "lost"
    assert prose.step("My plan: [b, c]").done
    assert prose.feedback() == (
        "The attempt failed: the plan ended before the goal was reached. "
        "Steps used: 2. Actions without effect: 0. Invalid answers: 0."
    )


def test_prose_counts_the_steps_that_are_left_and_marks_invalid_answers() -> None:
    env = opened(format="prose")
    ask = "Answer with one action in square brackets, such as [a]."
    assert env.reset() == f"@ # $\n# # &\nSteps left: 4\n{ask}"
    assert env.step("Let me try `b`.").observation == f"# @ $\n# # &\nSteps left: 3\n{ask}"
    unchanged = env.step("[a]")
    assert unchanged.observation == f"Your last action had no effect.\n# @ $\n# # &\nSteps left: 2\n{ask}"
    invalid = env.step("I do not know.")
    assert not invalid.valid
    assert invalid.observation == (
        "Your answer held no valid action, so nothing was done. Possible actions: a, b, c, d.\n"
        f"# @ $\n# # &\nSteps left: 1\n{ask}"
    )
    assert env.step("first `b`, no, rather\n```\nc\n```").done
    assert env.feedback() == (
        "The attempt failed: all 4 steps were used up before the goal. "
        "Steps used: 4. Actions without effect: 1. Invalid answers: 1."
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a]. I do not choose `b`.", ["a"]),
        ("[b], no, [A]", ["a"]),
        ("`[a]`", ["a"]),
        ("```text\n[a, b]\n```", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ("[a.]", ["a"]),
        ("`b`, no, `a`", ["a"]),
        ("The hole is at [1, 2]. So: `a`", ["a"]),
        ("[] `a`", ["a"]),
        ("[a], no, [e] `b`", []),
        ("[a e]", []),
        ("a", []),
    ],
)
def test_the_last_square_brackets_count_and_code_only_without_any(text: str, words: list[str]) -> None:
    rendering = opened(format="prose")._rendering
    assert [action.word for action in rendering.read_actions(text)] == words


def test_prose_feedback_of_success_and_of_a_hole_is_true() -> None:
    env = opened(format="prose", max_steps=3)
    env.reset()
    for word in "bcb":  # the goal on the very last step is a success
        env.step(f"[{word}]")
    assert env.feedback().startswith("The attempt succeeded")
    env.reset()
    for word in "bb":
        env.step(f"[{word}]")
    assert env.feedback().startswith("The attempt failed: the player fell into a hole. Steps used: 2.")


def test_prose_prompts_tell_neither_rules_nor_the_board_letters() -> None:
    env = opened(format="prose", actions="hidden_world")
    shown = f"{env.instructions}\n{env.reset()}".lower()
    assert not re.search(
        r"\b(up|down|left|right|hole|frozen|goal|seed|shortest|path)\b", shown.replace("steps left", "")
    )
    assert not set("SFHG") & set(env.reset().split("\nSteps")[0])


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_agree_with_gymnasium(seed: int) -> None:
    """Compared are state, reward and end of every step, on boards of many shapes."""
    settings = FrozenLakeConfig(
        board_seed=seed, format="prose", rows=(2, 5), columns=(2, 6), holes=None, hole_probability=0.2,
        path_length=(1, 8), max_steps=30,
    )  # fmt: skip
    stream = random.Random(seed)
    words = {direction: word for word, direction in ACTIONS.items()}
    for board in TASKS.generate(settings, "training", 20):
        theirs = gymnasium.make(
            "FrozenLake-v1", desc=list(board.rows), is_slippery=False, max_episode_steps=10_000
        ).unwrapped
        payload = {"board": list(board.rows), "max_steps": 30, "actions": ACTIONS, "symbols": SYMBOLS}
        ours = game_of(settings, Task("task", "any", "frozen_lake", payload))
        theirs.reset(seed=0)
        ours.reset()
        for number in range(1, 31):
            direction = stream.choice(DIRECTIONS)
            cell, reward, terminated, _, _ = theirs.step(GYMNASIUM_ACTIONS[direction])
            transition = ours.step(f"[{words[direction]}]")
            grid = transition.observation.split("\nSteps left")[0].split("effect.\n")[-1]
            assert grid.split().index("@") == cell
            assert transition.reward == reward
            assert transition.done == (terminated or number == 30)
            if transition.done:
                break


SHORT = FrozenLakeConfig(
    format="short",
    action_mode="plan",
    action_words=("river", "stone", "cloud", "apple"),
    symbols=("P", ".", "X", "G"),
    rows=(3, 3),
    holes=(1, 2),
    path_length=(2, 4),
)
SHORT_ROWS = ("FGF", "SHF", "FFF")
SHORT_ACTIONS = {"river": "up", "apple": "right", "cloud": "down", "stone": "left"}
TASK = Task(
    "task",
    "frozen_lake-3x3",
    "frozen_lake",
    {
        "board": list(SHORT_ROWS),
        "max_steps": 6,
        "actions": SHORT_ACTIONS,
        "symbols": {"player": "P", "frozen": ".", "hole": "X", "goal": "G"},
    },
)


def played(answer: str) -> tuple[FrozenLake, float]:
    """An attempt of one answer, and its reward."""
    game = game_of(SHORT, TASK)
    game.reset()
    return game, game.step(answer).reward


def test_a_first_attempt_is_told_the_words_and_the_grid() -> None:
    game = game_of(SHORT, TASK)
    prompts = ENVIRONMENT.prompts(SHORT)
    assert prompts is not None
    assert prompts.attempt(game.instructions, game.reset(), []) == [
        {"role": "system", "content": "Actions: apple cloud river stone"},
        {"role": "user", "content": ". G .\nP X .\n. . ."},
    ]


def test_a_second_attempt_is_told_the_notes_too() -> None:
    prompts = ENVIRONMENT.prompts(SHORT)
    assert prompts is not None
    system, user = prompts.attempt("Actions: a b", ". G", ["up: river, left: stone"])
    assert system["content"] == "Actions: a b\nNotes: up: river, left: stone"
    assert user["content"] == ". G"


def test_an_answer_is_places_directions_and_words_of_which_the_words_are_done() -> None:
    """The player is in row 2, column 1, and the goal in row 1, column 2."""
    symbols = FrozenLakeSymbols("P", ".", "X", "G")
    words: dict[Direction, str] = {"up": "river", "right": "apple"}
    answer = short_answer(FrozenLakeBoard(SHORT_ROWS), symbols, ["up", "right"], words)
    assert answer == "P21 G12: up right [ river apple ]"
    assert gold_answer(SHORT, TASK) == [answer]
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
    prompts = ENVIRONMENT.prompts(SHORT)
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


PAYLOAD = {
    "board": ["SGF", "FFF"],
    "max_steps": 3,
    "actions": {"a": "up", "b": "right", "c": "down", "d": "left"},
    "symbols": {"player": "@", "frozen": "#", "hole": "$", "goal": "&"},
}


async def play() -> None:
    settings = FrozenLakeConfig(rows=(2, 2), columns=(3, 3), path_length=(1, 3), max_steps=3)
    environment = ENVIRONMENT.open(settings, Task("task", "frozen_lake-2x3", "frozen_lake", PAYLOAD))
    assert (environment.instructions, environment.tools) == ("", ())
    assert await environment.reset() == "@ & # # # #"

    invalid = await environment.step(AssistantTurn("jump"))
    assert invalid.messages == [{"role": "user", "content": "bad c0"}]
    assert (invalid.reward, invalid.done, invalid.metrics) == (0.0, False, {"invalid_turns": 1.0})

    end = await environment.step(AssistantTurn("right b"))
    assert (end.reward, end.done, end.metrics) == (1.0, True, {"invalid_turns": 0.0})
    assert await environment.feedback() == "goal"
    assert environment.trace() == ". . bad c0 right b goal c1 . . . ."
    await environment.close()


def test_the_game_in_messages() -> None:
    asyncio.run(play())
