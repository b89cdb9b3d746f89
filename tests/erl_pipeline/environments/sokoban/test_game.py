from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.sokoban import ENVIRONMENT
from tests.erl_pipeline.environments.sokoban.games import ROWS, TRAP, opened, settings, task

ASK = "Answer with one action in square brackets, such as [p]."


def test_a_successful_attempt_in_compact_form() -> None:
    game = opened()
    assert game.reset() == "D D D D D A B C D D D D start c5 c6"
    around = game.step("up p")
    assert (around.observation, around.reward, around.done, around.valid) == ("up c1 c6", 0.0, False, True)
    game.step("down r")
    end = game.step("right q")
    assert (end.observation, end.reward, end.done) == ("right c6 c7", 1.0, True)
    assert game.feedback() == "solved"
    assert game.trace() == "up p up c1 c6 down r down c5 c6 right q right c6 c7 . . . . ."


def test_a_smaller_board_stands_in_the_upper_left_corner_of_the_frame() -> None:
    small = ("####", "#@.#", "# $#", "#  #", "####")
    assert opened(small).reset() == "A C E E D B E E D D E E start c0 c5"


def test_the_outcome_is_the_direction_really_moved_not_the_one_aimed_for() -> None:
    assert opened().step("up s").observation == "left c4 c6"


def test_walls_and_invalid_answers_cost_a_step_and_move_nothing() -> None:
    game = opened()
    game.step("up p")
    assert game.step("up p").observation == "wall c1 c6"
    for text in ("p", "up p up p"):
        refused = game.step(text)
        assert (refused.observation, refused.valid, refused.reward) == ("bad c1 c6", False, 0.0)
    assert game.feedback() == "lost"
    assert game.trace() == "up p up c1 c6 up p wall c1 c6 . . bad c1 c6 . . bad c1 c6"


def test_a_last_move_with_effect_is_no_success() -> None:
    game = opened(format="prose", max_steps=2)
    game.step("[p]")
    end = game.step("[q]")
    assert (end.reward, end.done) == (0.0, True)
    assert game.feedback() == (
        "The attempt failed: all 2 steps were used up. Boxes on goals: 0 of 1. Steps used: 2. Pushes: 0. "
        "Moves without effect: 0. Invalid answers: 0."
    )
    assert "success" not in game.trace()


def test_a_solution_with_the_last_step_is_a_success() -> None:
    game = opened(format="prose", max_steps=1)
    end = game.step("[q]")
    assert (end.reward, end.done) == (1.0, True)
    assert game.feedback() == (
        "The attempt succeeded: all boxes are on goals. Boxes on goals: 1 of 1. Steps used: 1. Pushes: 1. "
        "Moves without effect: 0. Invalid answers: 0."
    )


def test_the_policy_is_told_the_steps_that_the_task_really_allows() -> None:
    game = opened(format="prose", max_steps=8, rows=ROWS)
    assert "Steps left: 8" in game.reset()
    game = opened(format="prose", max_steps=2)
    assert "Steps left: 1" in game.step("[p]").observation
    last = game.step("[p]")
    assert "Steps left: 0" in last.observation
    assert last.done


def test_prose_shows_the_board_and_says_what_was_without_effect_or_invalid() -> None:
    game = opened(format="prose")
    walls = "E E E E E E"
    assert game.reset() == (f"{walls}\nE D D D D E\nE D A B C E\nE D D D D E\n{walls}\nSteps left: 4\n{ASK}")
    moved = f"{walls}\nE D A D D E\nE D D B C E\nE D D D D E\n{walls}"
    assert game.step("Let me try `p`.").observation == f"{moved}\nSteps left: 3\n{ASK}"
    assert game.step("[P]").observation == f"Your last action had no effect.\n{moved}\nSteps left: 2\n{ASK}"
    assert game.step("I do not know.").observation == (
        "Your answer held no valid action, so nothing was done. Possible actions: p, q, r, s.\n"
        f"{moved}\nSteps left: 1\n{ASK}"
    )


def test_feedback_says_what_moves_without_effect_ran_against() -> None:
    """Two boxes in a column against the border: a push up moves neither, one from the side moves its box."""
    game = opened(("####", "#  #", "#$.#", "#$.#", "#@ #", "####"), max_steps=3, format="prose")
    game.step("[p]")
    game.step("[s]")
    game.step("[r]")
    assert (
        "Moves without effect: 3 (against a wall: 2; pushes of a box against another box: 1)."
        in game.feedback()
    )
    assert "Step 1: action p (no effect: the box in the way has another box behind it)\n" in game.trace()
    assert "Step 2: action s (no effect: a wall is in the way)\n" in game.trace()


def test_a_push_against_a_wall_is_named() -> None:
    game = opened(TRAP, format="prose", max_steps=2)
    game.step("[p]")
    game.step("[p]")
    assert "Pushes: 1. Moves without effect: 1 (pushes of a box against a wall: 1)." in game.feedback()
    assert "Step 1: action p (a box was pushed)\n" in game.trace()


def test_boxes_pushed_onto_and_off_goals_are_told_in_the_trace() -> None:
    game = opened(("#######", "#@$.  #", "#     #", "#$.   #", "#######"), format="prose", columns=(7, 7))
    game.step("[q]")
    game.step("[q]")
    assert "Step 1: action q (a box was pushed onto a goal)\n" in game.trace()
    assert "Step 2: action q (a box was pushed off a goal)\n" in game.trace()
    assert game.trace().count(" b ") == 1  # the box on the goal, after the first step alone


def test_deadlocks_are_told_by_name_and_the_attempt_goes_on() -> None:
    game = opened(TRAP, format="prose")
    for word in "pqps":
        end = game.step(f"[{word}]")
    assert end.done
    assert game.feedback() == (
        "The attempt failed: all 4 steps were used up. Boxes on goals: 0 of 1. Steps used: 4. Pushes: 2. "
        "Moves without effect: 0. Invalid answers: 0. "
        "Deadlock: a box stands in a corner that is no goal, and can never leave it."
    )


def test_a_deadlock_may_end_the_attempt() -> None:
    prose, compact = (opened(TRAP, format=form, at_deadlock="end") for form in ("prose", "compact"))
    assert prose.step("[p]").done
    assert prose.feedback().startswith("The attempt failed: it ended at a deadlock. Boxes on goals: 0 of 1.")
    assert "Deadlock: boxes stand along a wall that they can never leave" in prose.feedback()
    assert compact.step("up p").done
    assert compact.feedback() == "stuck"


def test_a_plan_is_carried_out_in_one_turn() -> None:
    game = opened(action_mode="plan")
    end = game.step("up p down r right q up p")
    assert (end.reward, end.done, end.valid, len(end.steps)) == (1.0, True, True, 3)
    assert game.trace().split()[-5:] == ["."] * 5  # actions after success are ignored
    game.reset()
    assert game.step("up p").done
    assert game.feedback() == "lost"
    prose = opened(format="prose", action_mode="plan")
    assert prose.step("My plan: [p, s]").done
    assert prose.feedback().startswith("The attempt failed: the plan ended before all boxes were on goals.")


def test_an_attempt_that_is_over_takes_no_more_steps_until_reset() -> None:
    game = opened()
    with pytest.raises(RuntimeError, match="not over"):
        game.feedback()
    assert game.step("right q").done
    with pytest.raises(RuntimeError, match="over"):
        game.step("right q")
    assert game.reset().endswith("start c5 c6")
    assert game.trace() == " ".join(["."] * 20)


def test_prose_prompts_tell_neither_rules_nor_the_letters_of_boards() -> None:
    game = opened(format="prose", actions="hidden_world")
    shown = f"{game.instructions}\n{game.reset()}".lower().replace("steps left", "")
    words = "up|down|left|right|wall|box|boxes|goal|player|push|seed|solution|sokoban"
    assert not re.search(rf"\b({words})\b", shown)
    assert not set("#@$.*+") & set(game.reset().split("\nSteps")[0])


def test_texts_say_nothing_of_cells_or_of_a_solution() -> None:
    """The texts of these boards must not differ: with the same moves, feedback is the same for another
    task."""
    texts = set()
    for rows in (TRAP, ("#####", "#   #", "# $ #", "#.@ #", "#####")):
        game = opened(rows, format="prose", max_steps=2)
        game.step("[p]")
        game.step("[p]")
        texts.add(game.feedback())
    assert len(texts) == 1


@given(text=st.one_of(st.text(), st.from_regex(r"[\[\]`pqrs ,]{0,20}"), st.from_regex(r"(up [pqx] ?){0,3}")))
@pytest.mark.parametrize("form", ["prose", "compact"])
@pytest.mark.parametrize("mode", ["step", "plan"])
def test_any_text_is_a_turn(form: str, mode: str, text: str) -> None:
    result = opened(format=form, action_mode=mode).step(text)
    assert result.valid == (result.steps[0].outcome != "bad")
    assert 1 <= len(result.steps) <= 4
    assert result.done or mode == "step"


async def play(rows: tuple[str, ...], *texts: str, **changes: object) -> dict[str, float]:
    """The metrics of an attempt, added up over its turns."""
    environment = ENVIRONMENT.open(settings(**changes), task(rows))
    await environment.reset()
    total: dict[str, float] = {}
    for text in texts:
        transition = await environment.step(AssistantTurn(text))
        for name, value in transition.metrics.items():
            total[name] = total.get(name, 0.0) + value
    await environment.close()
    return total


def test_the_game_in_messages() -> None:
    async def attempt() -> None:
        environment = ENVIRONMENT.open(settings(), task())
        assert (environment.instructions, environment.tools) == ("", ())
        assert await environment.reset() == "D D D D D A B C D D D D start c5 c6"
        invalid = await environment.step(AssistantTurn("jump"))
        assert invalid.messages == [{"role": "user", "content": "bad c5 c6"}]
        assert (invalid.reward, invalid.done) == (0.0, False)
        end = await environment.step(AssistantTurn("right q"))
        assert (end.reward, end.done) == (1.0, True)
        assert await environment.feedback() == "solved"
        assert environment.trace().startswith(". . bad c5 c6 right q right c6 c7 .")

    asyncio.run(attempt())


def test_metrics_of_a_success() -> None:
    assert asyncio.run(play(ROWS, "jump", "up p", "up p", "down r")) == {
        "boxes_on_goals": 0.0,
        "deadlock": 0.0,
        "pushes": 0.0,
        "moves_without_effect": 1.0,
        "invalid_turns": 1.0,
    }
    assert asyncio.run(play(ROWS, "right q"))["boxes_on_goals"] == 1.0


def test_a_deadlock_counts_once_however_long_the_attempt_goes_on() -> None:
    total = asyncio.run(play(TRAP, "up p", "right q", "up p", "left s"))
    assert (total["deadlock"], total["pushes"], total["boxes_on_goals"]) == (1.0, 2.0, 0.0)


def test_boxes_on_goals_are_those_at_the_end() -> None:
    """One box is on its goal from the start; the other is pushed onto a goal, and off it again."""
    rows = ("#######", "#@$.  #", "#    *#", "#     #", "#######")
    changes: dict[str, object] = {"columns": (7, 7), "boxes": (2, 2)}
    assert asyncio.run(play(rows, "left s", **changes))["boxes_on_goals"] == 1.0
    rows = ("########", "#@$.   #", "#$.   *#", "#      #", "########")
    changes = {"columns": (8, 8), "format": "prose"}
    assert asyncio.run(play(rows, "[q]", **changes))["boxes_on_goals"] == 2.0
    assert asyncio.run(play(rows, "[q]", "[q]", **changes))["boxes_on_goals"] == 1.0


def test_another_attempt_begins_its_metrics_anew() -> None:
    async def twice() -> list[float]:
        environment = ENVIRONMENT.open(settings(), task())
        counted = []
        for _ in range(2):
            await environment.reset()
            end = await environment.step(AssistantTurn("right q"))
            counted.append(end.metrics["boxes_on_goals"])
        return counted

    assert asyncio.run(twice()) == [1.0, 1.0]


def test_the_package_loads_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, erl_pipeline.environments.sokoban\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
