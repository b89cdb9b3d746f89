"""The agents of examples/agents that are functions, against a policy that gives scripted answers."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import capitals
import pytest
import shop

from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.gateway.playing import Says, only, played

ROOT = Path(__file__).parents[2]
SHOP = {"prompt": "What do two pens cost each?", "item": "pen", "prices": {"pen": 31, "cup": 8}}
CAPITAL = {"prompt": "What is the capital of Peru?", "capital": "Lima"}


@pytest.mark.parametrize("name", ["capitals", "shop"])
def test_the_command_finds_their_functions_in_the_folder_that_it_is_called_in(name: str) -> None:
    program = Path(sysconfig.get_path("scripts"), "erl-pipeline")
    words: list[str | Path] = [program, "env", "show", f"examples/agents/{name}.yaml"]
    # -P and PYTHONPATH would decide where modules are looked for.
    shown = subprocess.run(words, cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert (shown.returncode, shown.stderr) == (0, "")


def asks_for(item: str) -> str:
    call = {"name": "price", "arguments": {"item": item}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


def in_the_shop(says: Says) -> Trajectory:
    return only(played(shop.solve, says, task=SHOP))


@pytest.mark.parametrize("told", ["It costs 31 dollars.", "The price is 31."])
def test_an_answer_with_the_price_that_was_looked_up_is_right(told: str) -> None:
    row = in_the_shop(lambda prompt: told if "<tool_call>" in prompt else asks_for("pen"))
    assert (row.reward, row.feedback) == (1.0, "Right.")
    assert len(row.response_mask) > sum(row.response_mask)  # the tool's answer is not trained


@pytest.mark.parametrize(
    ("item", "reward", "feedback"),
    [
        ("pens", 0.1, "There is no item pens. Items are in the singular."),
        ("cup", 0.1, "You looked up another item."),
        ("pen", 0.3, "You looked the price up, and did not tell it."),
        (None, 0.0, "You did not look up a price."),
    ],
)
def test_feedback_says_what_went_wrong(item: str | None, reward: float, feedback: str) -> None:
    def says(prompt: str) -> str:
        return "I do not know." if item is None or "<tool_call>" in prompt else asks_for(item)

    row = in_the_shop(says)
    assert (row.reward, row.feedback) == (reward, feedback)


def test_a_policy_that_only_calls_the_tool_is_stopped() -> None:
    row = in_the_shop(lambda prompt: asks_for("cup"))
    assert (row.reward, row.finish_reason) == (0.1, "done")


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["The capital of Peru is Lima."], 1.0),
        (["Well, the capital of Peru is Lima.", "Lima"], 0.7),
        (["Well, the capital of Peru is Lima.", "It is Lima, of course, as you know."], 0.3),
        (["Well, the capital of Peru is Quito.", "It is Lima, of course, as you know."], 0.0),
        (["Quito"], 0.0),
        (["Limassol"], 0.0),
    ],
)
def test_a_short_answer_is_wanted(answers: list[str], reward: float) -> None:
    left = iter(answers)
    row: Any = only(played(capitals.solve, lambda prompt: next(left), task=CAPITAL))
    assert row.reward == pytest.approx(reward)
