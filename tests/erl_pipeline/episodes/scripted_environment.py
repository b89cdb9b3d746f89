"""An environment whose methods do what a test tells them to do."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.interface import (
    Environment,
    EnvironmentPlugin,
    EpisodeTraits,
    Task,
    Timing,
    Transition,
)
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.episodes.play import EpisodeSetup
from tests.erl_pipeline.episodes.script import TASK, limits, setup

EnvironmentT = TypeVar("EnvironmentT", bound=Environment)


class ScriptedSettings(PluginSettings):
    type: Literal["scripted"] = "scripted"


@dataclass
class Scripted:
    """By default the first step ends the attempt, without reward. It counts how often it was closed. All
    texts are in the compact format, so that the tiny policy's tokenizer knows their words.
    """

    task: Task = TASK
    instructions: str = ""
    tools: Sequence[ToolSchema] = ()
    on_reset: Callable[[], Awaitable[str]] | None = None
    on_step: Callable[[AssistantTurn], Awaitable[Transition]] | None = None
    on_feedback: Callable[[], Awaitable[str]] | None = None
    on_close: Callable[[], Awaitable[None]] | None = None
    closed: int = 0
    said: list[AssistantTurn] = field(default_factory=list)

    async def reset(self) -> str:
        return await self.on_reset() if self.on_reset else "@ &"

    async def step(self, turn: AssistantTurn) -> Transition:
        self.said.append(turn)
        return await self.on_step(turn) if self.on_step else ends()

    async def feedback(self) -> str:
        return await self.on_feedback() if self.on_feedback else "fell"

    def trace(self) -> str:
        return "down b"

    async def close(self) -> None:
        self.closed += 1
        if self.on_close:
            await self.on_close()


def ends(reward: float = 0.0, **metrics: float) -> Transition:
    """The last turn of an attempt."""
    return Transition([user_message("fell c4")], reward, done=True, metrics=metrics)


def goes_on(**metrics: float) -> Transition:
    """A turn after which there is another."""
    return Transition([user_message("bump c0")], 0.0, done=False, metrics=metrics)


def scripted(
    make: Callable[[Task], EnvironmentT],
    timing: Timing = "instant",
    step_seconds: float = 60.0,
    mean_metrics: frozenset[str] = frozenset(),
    **rules: Any,
) -> tuple[EpisodeSetup, list[EnvironmentT]]:
    """Episodes in environments that `make` returns; and the list of the opened environments, in order."""
    opened: list[EnvironmentT] = []

    def open_scripted(settings: ScriptedSettings, task: Task) -> EnvironmentT:
        opened.append(make(task))
        return opened[-1]

    plugin = EnvironmentPlugin(
        settings=ScriptedSettings,
        training_tasks=lambda settings, seed: [],
        held_out_tasks=lambda settings, seed, count: [],
        open=open_scripted,
        episodes=EpisodeTraits(timing=timing, mean_metrics=mean_metrics),
    )
    given = replace(
        setup(**rules),
        plugin=plugin,
        settings=ScriptedSettings(),
        limits=limits(step_seconds=step_seconds),
    )
    return given, opened


def tasks(count: int) -> list[Task]:
    """Tasks `t0`, `t1`, ..."""
    return [replace(TASK, task_id=f"t{number}") for number in range(count)]
