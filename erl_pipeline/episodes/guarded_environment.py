"""An environment whose failures are data: an exception, or a call that hangs, ends one episode only."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from erl_pipeline.environments.interface import (
    AgentEndpoint,
    AgentEnvironment,
    AgentLimits,
    AgentResult,
    Environment,
    Observation,
    ScorerFailed,
    Transition,
)
from erl_pipeline.environments.messages import AssistantTurn, Message, ToolSchema
from erl_pipeline.environments.raised_at import raised_at
from storage.tables.scored import Failed
from storage.texts import StorableTexts

Result = TypeVar("Result")

_LARGEST = 1e30  # rewards and metrics of all turns are added up, and rewards are stored in 32 bits
_CLOSE_SECONDS = 10.0  # a stopped run waits no longer than this for environments to close


class EnvironmentFailure(Exception):
    """A call of the environment raised or missed its deadline. The text is for people, never for prompts."""

    def __init__(self, kind: Failed, text: str, place: str = "") -> None:
        super().__init__(text)
        self.kind: Failed = kind
        self.place = place
        """File and line of the code that raised; empty for a deadline, and where the text says all."""


class GuardedEnvironment:
    """The environment of one episode, opened when it is first used.

    Args:
        open_environment: makes the environment.
        step_seconds: deadline of each call.

    Every method but `close` raises `EnvironmentFailure` for whatever goes wrong in the environment. All texts
    that it returns or raises are storable.
    """

    def __init__(self, open_environment: Callable[[], Environment], step_seconds: float) -> None:
        self._open = open_environment
        self._seconds = step_seconds
        self._opened: Environment | None = None
        self.failure: EnvironmentFailure | None = None
        """What ended the episode, if anything did."""
        self.close_failed = False
        self.gave_no_number = False
        """Whether a reward or a metric was infinite or not a number."""
        self.renewed = 0
        """How often it was opened anew after a failure."""
        self.texts = StorableTexts()
        self.agent_opening: tuple[Sequence[Message], Sequence[ToolSchema]] | None = None
        """How the agent of the episode's first attempt began, where an agent plays."""

    async def reset(self) -> Observation:
        return await self._call("reset", lambda: self._environment.reset(), self._checked_text)

    async def step(self, turn: AssistantTurn) -> Transition:
        return await self._call("step", lambda: self._environment.step(turn), self._checked_transition)

    async def feedback(self) -> str:
        return await self._call("feedback", lambda: self._environment.feedback(), self._checked_text)

    def trace(self) -> str:
        return self._read("trace", lambda: self._checked_text(self._environment.trace()))

    def instructions(self) -> str:
        return self._read("instructions", lambda: self._checked_text(self._environment.instructions))

    def tools(self) -> Sequence[ToolSchema]:
        return self._read("tools", lambda: tuple(map(self.texts.value, self._environment.tools)))

    def agent_limits(self) -> AgentLimits:
        """The limits of an agent's attempt."""
        return self._read("limits", lambda: cast(AgentEnvironment, self._environment).limits)

    async def run_agent(self, endpoint: AgentEndpoint) -> AgentResult:
        """Let the agent play; its deadline is the endpoint's, not that of a step."""
        environment = cast(AgentEnvironment, self._environment)
        return await self._call(
            "the agent", lambda: environment.run(endpoint), self._checked_result, endpoint.seconds
        )

    def fail(self, text: str) -> EnvironmentFailure:
        """Note that the environment failed, for a reason that only its caller sees; returns the failure."""
        self.failure = EnvironmentFailure("environment_error", text)
        return self.failure

    async def renew(self) -> None:
        """Close what was opened and forget its failure; the next call opens a new environment."""
        await self.close()
        self.failure = None
        self.renewed += 1

    async def close(self) -> None:
        """Close what was opened. A failure is only noted, since the episode is over."""
        if self._opened is None:
            return
        environment, self._opened = self._opened, None
        try:
            await _within(min(self._seconds, _CLOSE_SECONDS), environment.close())
        # Whatever a foreign environment raises, an exit too, must not end other episodes.
        except (Exception, SystemExit):
            self.close_failed = True

    @property
    def _environment(self) -> Environment:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    async def _call(
        self,
        name: str,
        call: Callable[[], Coroutine[Any, Any, Result]],
        check: Callable[[Result], Result],
        own_seconds: float | None = None,
    ) -> Result:
        seconds = self._seconds if own_seconds is None else own_seconds
        try:
            return check(await _within(seconds, call()))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something within the environment was cancelled, not this episode.
            raise self._failed(name, error) from error
        except _TooLate as error:
            text = f"{name} did not return within {seconds:g} seconds{error}"
            self.failure = EnvironmentFailure("environment_timeout", self.texts.text(text))
            raise self.failure from error
        # Whatever a foreign environment raises, an exit too, is data of its episode.
        except (Exception, SystemExit) as error:
            raise self._failed(name, error) from error

    def _read(self, name: str, function: Callable[[], Result]) -> Result:
        try:
            return function()
        # Whatever a foreign environment raises, an exit too, is data of its episode.
        except (Exception, SystemExit) as error:
            raise self._failed(name, error) from error

    def _failed(self, name: str, error: BaseException) -> EnvironmentFailure:
        text = f"{name}: {type(error).__name__}"
        if str(error):
            text += f": {error}"
        kind: Failed = "scorer_error" if isinstance(error, ScorerFailed) else "environment_error"
        self.failure = EnvironmentFailure(kind, self.texts.text(text), raised_at(error))
        return self.failure

    def _checked_text(self, text: str) -> str:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
        return self.texts.text(text)

    def _checked_transition(self, transition: Transition) -> Transition:
        """The transition; raises where its row could not be stored or trained on."""
        return replace(
            transition,
            messages=[self._checked_message(message) for message in transition.messages],
            metrics=self._checked_numbers(transition.reward, transition.metrics),
        )

    def _checked_result(self, result: AgentResult) -> AgentResult:
        """The same for what an agent's attempt led to."""
        return replace(
            result,
            feedback=self._checked_text(result.feedback),
            metrics=self._checked_numbers(result.reward, result.metrics),
        )

    def _checked_numbers(self, reward: float, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics, by storable names; raises where one of them or the reward is no number to store."""
        numbers = {"the reward": reward}
        numbers |= {f"the metric {name!r}": value for name, value in metrics.items()}
        for name, value in numbers.items():
            if not math.isfinite(value):
                self.gave_no_number = True
                raise ValueError(f"{name} is {value}, not a finite number")
            if abs(value) > _LARGEST:
                raise ValueError(f"{name} is {value}; allowed are numbers up to {_LARGEST:g}")
        return {self.texts.text(name): value for name, value in metrics.items()}

    def _checked_message(self, message: Message) -> Message:
        known = message["role"] in ("user", "tool") and "content" in message
        if not known or not all(isinstance(value, str) for value in message.values()):
            raise ValueError(f"{message!r} is no user or tool message with texts alone")
        stored: Message = self.texts.value(message)
        return stored


class _TooLate(Exception):
    """A deadline has passed."""


async def _within(seconds: float, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns. Where it does not return by the deadline it is cancelled; raises `_TooLate`, with
    what `work` said as it was cancelled."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError as error:
        if deadline.expired():
            raise _TooLate(str(error.__cause__ or "")) from error
        raise
