"""One attempt that an agent plays: a program that asks the policy by itself, through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from erl_pipeline.environments.interface import AgentResult
from erl_pipeline.environments.messages import Message, ToolSchema, without_thoughts
from erl_pipeline.episodes.context import EpisodeContext, SampleRequest, TurnKey
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure
from storage.artifacts.recipe import derive_seed
from storage.tables.trajectories import OTHER_OPENING

if TYPE_CHECKING:
    from erl_pipeline.episodes.gateway.sequences import SampledSequence
    from erl_pipeline.episodes.gateway.server import Gateway
    from erl_pipeline.episodes.gateway.session import AgentSession, AskedPolicy
    from storage.tables.agent_calls import AgentCall

_FIRST = 1
"""The number of the sequence that the attempt's first call begins."""
_LONGEST_TRACE = 8_000
"""Characters of an attempt that a reflection is shown: the first half and the last half of so many."""


Opening = Callable[[str, str], Sequence[Message] | Awaitable[Sequence[Message]]]
"""Makes the prompt of an attempt from the environment's instructions and first observation. It is awaited
where it asks memory first."""


@dataclass(frozen=True)
class AgentAttempt:
    """What an agent played. Either `result` or `failure` is None.

    `instructions` and `observation` are the system message and the first user message with which the agent
    began, as it wrote them. `calls` do not have the id of the attempt yet.
    """

    sequences: Sequence[SampledSequence]
    instructions: str
    observation: str
    trace: str
    result: AgentResult | None
    failure: EnvironmentFailure | None
    metrics: Mapping[str, float]
    calls: Sequence[AgentCall]


async def play_agent(
    context: EpisodeContext, gateway: Gateway, place: TurnKey, opening: Opening
) -> AgentAttempt:
    """Let the agent play the task once.

    `opening` makes the prompt of the attempt from the agent's own system message and its first message. Its
    system message takes the place of the agent's wherever a conversation begins with that: so notes reach an
    agent that knows nothing of them, and what is trained later can be asked without them.

    Raises what asking the policy raises.
    """
    # A web server, which episodes without agents do not import.
    from erl_pipeline.episodes.gateway.session import AgentSession

    environment, policy = context.environment, _asked_policy(context, place)
    inserted = _Inserted(context, opening)
    session: AgentSession | None = None
    result, failure = None, None
    task = ""
    try:
        task = await environment.reset()
        limits = environment.agent_limits()
        session = AgentSession(policy, limits, inserted.shown)
        seed = derive_seed(policy.seed, "agent")
        async with gateway.serving(session, seed, limits.seconds) as endpoint:
            result = await _unless_failed(session, environment.run_agent(endpoint))
        if not session.sequences:
            refused = next((each.call.problem for each in session.recorded if each.call.problem), None)
            raise environment.fail(
                "the agent made no call: it has to ask the model at OPENAI_BASE_URL, with OPENAI_API_KEY"
                if refused is None
                else f"no call of the agent was answered; the first was refused: {refused}"
            )
    except EnvironmentFailure as failed:
        result, failure = None, failed
    began = inserted.began or ()
    sequences = [] if session is None else _in_order(session.sequences)
    return AgentAttempt(
        sequences=sequences,
        instructions=_system(began),
        observation=_first_asked(began) or task,
        trace=_trace(sequences),
        result=result,
        failure=failure,
        metrics={} if session is None or result is None else _metrics(session, sequences, result, inserted),
        calls=[] if session is None else _calls(session, sequences),
    )


def _asked_policy(context: EpisodeContext, place: TurnKey) -> AskedPolicy:
    from erl_pipeline.episodes.gateway.session import AskedPolicy

    limits, identity = context.limits.by_role[place.role], context.identity
    assert limits.model is not None
    return AskedPolicy(
        chat=context.chat,
        context_length=context.limits.context_length,
        end_token_ids=context.limits.end_token_ids,
        model=limits.model,
        temperature=limits.temperature,
        max_new_tokens=limits.max_new_tokens,
        seed=identity.seed(place.role, place.revision, 0),
        conversation=f"{identity.episode_id}/{place.role}/{place.revision}",
        ask=lambda request: context.ask_policy(SampleRequest(place.phase, request)),
    )


async def _unless_failed(session: AgentSession, running: Awaitable[AgentResult]) -> AgentResult:
    """What the agent's run gives; raises at once where the policy could not be asked."""
    run = asyncio.ensure_future(running)
    try:
        either: set[asyncio.Future[Any]] = {run, session.failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if session.failed.done():
            session.failed.result()
        return await run
    finally:
        run.cancel()
        session.failed.cancel()
        await asyncio.gather(run, return_exceptions=True)


class _Inserted:
    """Puts the system message of the attempt in place of the agent's own, in every conversation that begins
    with the system message of the episode's first call."""

    def __init__(self, context: EpisodeContext, opening: Opening) -> None:
        self._environment = context.environment
        self._opening = opening
        self.began: Sequence[Message] | None = None
        """The messages of the attempt's first call, as the agent wrote them."""
        self.as_before = True
        """Whether the agent began as in the episode's first attempt, with the same tools."""

    async def shown(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Sequence[Message]:
        opening = tuple(messages), tuple(tools)
        if self._environment.agent_opening is None:
            self._environment.agent_opening = opening
        if self.began is None:
            self.began = tuple(messages)
            self.as_before = opening == self._environment.agent_opening
        own = _system(messages)
        if own != _system(self._environment.agent_opening[0]):
            return messages
        told = self._opening(own, _first_asked(messages))
        first = (await told if isawaitable(told) else told)[0]
        if first["role"] != "system" or first["content"] == own:
            return messages
        return [first, *(messages[1:] if _has_system(messages) else messages)]


def _has_system(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0]["role"] == "system"


def _system(messages: Sequence[Message]) -> str:
    return messages[0]["content"] if _has_system(messages) else ""


def _first_asked(messages: Sequence[Message]) -> str:
    return next((each["content"] for each in messages if each["role"] == "user"), "")


def _in_order(sequences: Sequence[SampledSequence]) -> list[SampledSequence]:
    """The one that the first call began, whenever it was answered; then the others by their tokens, since
    calls at the same time begin in any order."""
    by_number = sorted(sequences, key=lambda each: each.number)
    return [
        *by_number[:1],
        *sorted(by_number[1:], key=lambda each: (each.prompt_token_ids, each.response_token_ids)),
    ]


def _calls(session: AgentSession, sequences: Sequence[SampledSequence]) -> list[AgentCall]:
    """By their place, not as they came; those without tokens are last."""
    number = {id(sequence): index for index, sequence in enumerate(sequences)}
    calls = [
        each.call if each.sequence is None else replace(each.call, sequence_index=number[id(each.sequence)])
        for each in session.recorded
    ]
    return sorted(calls, key=lambda call: (call.start is None, call.sequence_index or 0, call.start or 0))


def _trace(sequences: Sequence[SampledSequence]) -> str:
    """What was said after the opening, in the first sequence and in the last."""
    shown = (*sequences[:1], *sequences[1:][-1:])
    text = "\n".join(
        f"{message['role']}: {_told(without_thoughts(message))}"
        for sequence in shown
        for message in sequence.messages[len(sequence.opening) :]
    )
    half = _LONGEST_TRACE // 2
    return text if len(text) <= _LONGEST_TRACE else f"{text[:half]}\n[...]\n{text[-half:]}"


def _told(message: Message) -> str:
    """The text of a message, and its tool calls."""
    calls = [
        f"{call['function']['name']}({dict(call['function']['arguments'])})"
        for call in message.get("tool_calls", [])
    ]
    return " ".join([message["content"], *calls]).strip()


def _metrics(
    session: AgentSession, sequences: Sequence[SampledSequence], result: AgentResult, inserted: _Inserted
) -> dict[str, float]:
    """What the gateway counted, without what is 0, and the agent's own metrics under other names."""
    counted = {
        "calls": session.calls,
        "sequences": len(session.sequences),
        "overridden_calls": session.overridden,
        "refused_calls": session.refused,
        "limit_reached": session.limit_reached,
        OTHER_OPENING: not inserted.as_before or any(each.number != _FIRST for each in sequences[:1]),
    }
    own = {name: value for name, value in result.metrics.items() if name not in counted}
    return {**own, **{name: float(count) for name, count in counted.items() if count}}
