"""Numbers to be written backwards: an environment of one turn, in one file."""

from typing import Any, Literal

from pydantic import Field

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.single_turn import Payload, single_turn


class BackwardsConfig(PluginSettings):
    """The digits of a number are to be written backwards; reward 1 for that, 0 for anything else."""

    type: Literal["backwards"] = "backwards"
    digits: int = Field(default=3, ge=2, le=5)
    """Digits of each number."""


def tasks(settings: BackwardsConfig) -> list[dict[str, Any]]:
    """All numbers with so many digits."""
    return [{"number": number} for number in range(10 ** (settings.digits - 1), 10**settings.digits)]


def prompt(settings: BackwardsConfig, task: Payload) -> str:
    """What the policy is asked."""
    return f"Write the digits of {task['number']} backwards. Reply with nothing else."


def reward(settings: BackwardsConfig, task: Payload, reply: str) -> tuple[float, str]:
    """Whether the reply is right, and what can be said of it without giving the answer away."""
    said, right = reply.strip(), gold_answer(settings, task)
    placed = sum(one == other for one, other in zip(said, right, strict=False))
    return float(said == right), f"Digits at their place: {placed}."


def gold_answer(settings: BackwardsConfig, task: Payload) -> str:
    """The right reply, with which `erl-pipeline env qualify` examines the environment."""
    return str(task["number"])[::-1]


ENVIRONMENT = single_turn(BackwardsConfig, tasks=tasks, prompt=prompt, reward=reward, gold_answer=gold_answer)
