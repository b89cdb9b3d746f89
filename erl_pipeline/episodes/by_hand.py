"""One attempt whose turns somebody else makes, such as a person: without a model and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from erl_pipeline.environments.interface import EnvironmentPlugin, Task, Transition
from erl_pipeline.environments.messages import Message, ToolSchema, read_turn
from erl_pipeline.episodes.attempt import PlainPrompts
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment


@dataclass(frozen=True)
class Opened:
    """The prompt of a first attempt, and the tools that its policy may call."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema]


class HandPlayed:
    """An attempt as a policy has it: the same prompt, messages, reward, feedback and deadlines.

    Every method but `close` raises `EnvironmentFailure` where the environment fails.
    """

    def __init__(
        self, plugin: EnvironmentPlugin[Any], settings: Any, task: Task, step_seconds: float
    ) -> None:
        part, _ = plugin.part(settings, task)
        self._prompts = part.plugin.prompts(part.settings) or PlainPrompts()
        self._environment = GuardedEnvironment(partial(plugin.open, settings, task), step_seconds)
        self._has_tools = False
        self._turns = 0
        self.reward = 0.0

    async def begin(self) -> Opened:
        """Begin the attempt."""
        observation = await self._environment.reset()
        tools = self._environment.tools()
        self._has_tools = bool(tools)
        return Opened(self._prompts.attempt(self._environment.instructions(), observation, []), tools)

    async def say(self, text: str) -> Transition:
        """One turn; its reward is added to `reward`."""
        turn = read_turn(text, self._turns, self._environment.texts, has_tools=self._has_tools)
        self._turns += 1
        transition = await self._environment.step(turn)
        self.reward += transition.reward
        return transition

    async def feedback(self) -> str:
        """What the environment says of the attempt, which is over."""
        return await self._environment.feedback()

    async def close(self) -> None:
        """Leave the environment."""
        await self._environment.close()
