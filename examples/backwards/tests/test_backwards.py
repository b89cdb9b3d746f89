"""The prompt, the rewards and the feedback of the environment."""

import asyncio

import pytest
from backwards import ENVIRONMENT, BackwardsConfig

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import AssistantTurn

SETTINGS = BackwardsConfig()


async def attempt(said: str) -> tuple[str, float, str]:
    environment = ENVIRONMENT.open(SETTINGS, Task("t", "backwards", "backwards", {"number": 120}))
    asked, done = await environment.reset(), await environment.step(AssistantTurn(said))
    return asked, done.reward, await environment.feedback()


@pytest.mark.parametrize(("said", "right", "placed"), [(" 021\n", 1.0, 3), ("121", 0.0, 2), ("", 0.0, 0)])
def test_a_reply_is_rewarded(said: str, right: float, placed: int) -> None:
    asked, reward, told = asyncio.run(attempt(said))
    assert (asked, reward) == ("Write the digits of 120 backwards. Reply with nothing else.", right)
    assert told == f"Your reply is {'right' if right else 'wrong'}. Digits at their place: {placed}."


def test_held_out_numbers_are_never_trained_on() -> None:
    """Of 900 numbers a quarter is held out."""
    training, held_out = ENVIRONMENT.training_tasks(SETTINGS, 0), ENVIRONMENT.held_out_tasks(SETTINGS, 0, 225)
    assert (len(training), len({task.task_id for task in (*training, *held_out)})) == (675, 900)
