"""Environments of one turn: their splits, and what is said of a reply."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import ScorerFailed, Task
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.single_turn import Payload, Reward, SingleTurnEnvironment, single_turn
from storage.errors import InputError


class DoublingConfig(PluginSettings):
    type: Literal["doubling"] = "doubling"


def reward(settings: DoublingConfig, task: Payload, reply: str) -> float:
    return float(reply == str(2 * task["number"]))


def asked(given: Reward) -> SingleTurnEnvironment:
    """An environment that gives every reply the same reward."""
    plugin = single_turn(
        DoublingConfig,
        tasks=lambda settings: [{}],
        prompt=lambda settings, task: "?",
        reward=lambda settings, task, reply: given,
        instructions="Think.",
    )
    environment = plugin.open(DoublingConfig(), Task("t", "doubling", "doubling", {}))
    assert isinstance(environment, SingleTurnEnvironment)
    return environment


DOUBLING = single_turn(
    DoublingConfig,
    tasks=lambda settings: [{"number": number % 8} for number in range(10)],
    prompt=lambda settings, task: f"Double {task['number']}.",
    reward=reward,
)


def test_a_quarter_of_the_different_tasks_is_held_out_by_content() -> None:
    """Of ten payloads eight differ; a quarter of these is two."""
    settings = DoublingConfig()
    training, held_out = DOUBLING.training_tasks(settings, 0), DOUBLING.held_out_tasks(settings, 0, 2)
    assert (len(training), {task.payload["number"] for task in (*training, *held_out)}) == (6, set(range(8)))
    assert DOUBLING.held_out_tasks(settings, 5, 1) == held_out[:1]
    assert DOUBLING.splits.kept_split is not None
    find = DOUBLING.splits.kept_split(settings, 0)
    assert [find(task.payload) for task in (*held_out, training[0])] == ["held-out", "held-out", None]
    with pytest.raises(InputError, match="3 held-out tasks are asked for, but doubling has 2"):
        DOUBLING.held_out_tasks(settings, 0, 3)


def test_the_modules_of_the_helper_and_of_the_reward_are_its_code() -> None:
    assert DOUBLING.packages == ("erl_pipeline.environments.single_turn", __name__)
    assert DOUBLING.gold_answers is None


@pytest.mark.parametrize("given", [1.5, -0.1, float("nan"), (2.0, "much")])
def test_a_reward_that_is_none_is_a_failure_of_the_scorer(given: Reward) -> None:
    environment = asked(given)
    with pytest.raises(ScorerFailed, match="allowed are numbers from 0 to 1"):
        asyncio.run(environment.step(AssistantTurn("x")))


def test_a_part_of_a_score_is_told_as_a_number() -> None:
    async def told() -> list[str]:
        environment = asked((0.25, "It is short."))
        await environment.reset()
        await environment.step(AssistantTurn("x"))
        return [environment.instructions, await environment.feedback(), environment.trace()]

    assert asyncio.run(told()) == [
        "Think.",
        "The score of your reply is 0.25, where 1 is right. It is short.",
        "The prompt was: ?\n\nThe reply was: x",
    ]
