"""One attempt at a task, by a policy or by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.interface import EnvironmentPlugin, Task, Transition
from erl_pipeline.environments.messages import Message, ToolSchema, opening, read_turn
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.environments.tool_calls.hermes import HERMES
from erl_pipeline.episodes.agent_attempt import AgentAttempt, Opening, play_agent
from erl_pipeline.episodes.context import (
    Conversation,
    EpisodeContext,
    Outcome,
    TurnKey,
    further_sequence,
    situation,
    trajectory,
)
from erl_pipeline.episodes.dialogue import Dialogue, DialogueTurn
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure, GuardedEnvironment
from storage.errors import InputError
from storage.memory.view import MemoryHit
from storage.tables.scored import AS_ZERO, is_scored
from storage.tables.trajectories import Trajectory

if TYPE_CHECKING:
    from storage.tables.agent_calls import AgentCall


class TurnMetrics:
    """Sums the metrics of an attempt's turns; those in `means` are averaged over the turns that have them."""

    def __init__(self, means: frozenset[str]) -> None:
        self._means = means
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def of_attempt(self) -> dict[str, float]:
        """The metrics of all turns together, by name."""
        return {
            name: total / self._counts[name] if name in self._means else total
            for name, total in sorted(self._sums.items())
        }


class PlainPrompts:
    """Instructions as the system message, the first observation as the user's."""

    def attempt(self, instructions: str, observation: str, notes: Sequence[str]) -> list[Message]:
        """The opening of a first attempt. Raises `ValueError` for notes, for which there is no form."""
        if notes:
            raise ValueError("plain prompts have no form for notes")
        return opening(instructions, observation)


_NO_ROOM = "The conversation reached the end of the policy's context before the attempt was over."

Said = dict[int, tuple[tuple[int, ...], Generation]]
"""Prompts and answers of an attempt's turns, by their numbers."""


@dataclass(frozen=True)
class Attempt:
    """One try at the task. `turns` are those of the policy; none of an agent's attempt. `further` are the
    token sequences of an agent's attempt beside its first, `calls` what it asked.

    `finish_reason` is `done`, `context` (no room was left for another turn), or says why it was not scored
    (`storage.tables.scored`). Then the reward is 0 and means nothing, and `report.feedback` says what
    happened, for people only.
    """

    dialogue: Conversation
    instructions: str
    report: AttemptReport
    success: bool
    finish_reason: str
    metrics: Mapping[str, float]
    turns: Sequence[DialogueTurn] = ()
    further: Sequence[Conversation] = ()
    calls: Sequence[AgentCall] = ()
    turn_rewards: tuple[float, ...] | None = None

    @property
    def can_be_reflected_on(self) -> bool:
        """Whether it was played to its end, and failed."""
        return self.finish_reason == "done" and not self.success

    def situation(self, feedback: str) -> str:
        """What memory is searched by: the task as it was told, and the feedback."""
        return situation(self.dialogue.opening, feedback)

    def row(
        self,
        context: EpisodeContext,
        place: TurnKey,
        parent: str | None,
        *,
        hits: Sequence[MemoryHit] | None = None,
        subgroup: str | None = None,
    ) -> Trajectory:
        """Its trajectory; `parent` is the reflection (or attempt) that led to it, `hits` are the entries of
        memory that were in its prompt. Rows of its further sequences go to `context.further_sequences`, its
        calls to `context.agent_calls`."""
        row = trajectory(
            context,
            place,
            self.dialogue,
            Outcome(
                parent=parent,
                reward=self.report.reward,
                success=self.success,
                finish_reason=self.finish_reason,
                truncated=self.dialogue.truncated or self.finish_reason == "context",
                feedback=self.report.feedback,
                hits=hits,
                subgroup=subgroup,
                metrics=self.metrics,
                turn_rewards=self.turn_rewards,
            ),
        )
        context.further_sequences.extend(
            further_sequence(context, place, row, sequence, number)
            for number, sequence in enumerate(self.further, start=1)
        )
        context.agent_calls.extend(replace(call, attempt_id=row.trajectory_id) for call in self.calls)
        return row


class _AnsweredOtherwise(Exception):
    """The environment did not answer a turn that is played again as it had before."""


async def play_attempt(
    context: EpisodeContext, place: TurnKey, opening: Opening, kept: Sequence[DialogueTurn] = ()
) -> Attempt:
    """Play the task once, from the beginning. A failure of the environment ends it and is recorded.

    The turns in `kept` are not sampled but played again as they were, and are not trained (metric
    `kept_turns`). Where the environment answers one of them otherwise than it did, none is kept (metric
    `not_kept`).

    Where the limits allow retries, a failed attempt is played again in a new environment, with the same
    seeds. What the policy said before is not sampled again as long as its prompt is the same. So the attempt
    is the one that would have been played without the failure.

    Raises `InputError` when the prompt of a first attempt fills the policy's context, or when the environment
    offers tools that the policy's chat template does not show.
    """
    try:
        return await _attempt(context, place, opening, kept)
    except _AnsweredOtherwise:
        await context.environment.renew()
        attempt = await _attempt(context, place, opening, ())
        return replace(attempt, metrics={**attempt.metrics, "not_kept": 1.0})


async def _attempt(
    context: EpisodeContext, place: TurnKey, opening: Opening, kept: Sequence[DialogueTurn]
) -> Attempt:
    said: Said = {}
    attempt = await _play(context, place, opening, kept, said)
    for _ in range(context.limits.retries):
        if is_scored(attempt):
            break
        await context.environment.renew()
        attempt = await _play(context, place, opening, kept, said)
    return attempt


def rewarded(text: Trajectory, attempt: Attempt) -> Trajectory:
    """A text, such as a reflection, with the reward of the attempt that it led to. Where that attempt was not
    scored, neither is the text."""
    if not is_scored(attempt):
        return replace(text, finish_reason=attempt.finish_reason)
    return replace(text, reward=attempt.report.reward, success=attempt.success)


async def _play(
    context: EpisodeContext,
    place: TurnKey,
    opening: Opening,
    kept: Sequence[DialogueTurn],
    said: Said,
) -> Attempt:
    """One try. `said` has the prompts and answers of the turns of an earlier try, and gets those of this
    one."""
    if context.gateway is not None:
        return _of_agent(context, await play_agent(context, context.gateway, place, opening))
    environment = context.environment
    dialogue = Dialogue(context.chat, (), context.limits.end_token_ids)
    metrics = TurnMetrics(context.mean_metrics)
    instructions = observation = trace = ""
    reward, failed, rewards = 0.0, False, list[float]()
    try:
        observation = await environment.reset()
        instructions = environment.instructions()
        told = opening(instructions, observation)
        tools = environment.tools()
        _require_shown(context, tools)
        dialogue = Dialogue(
            context.chat, await told if isawaitable(told) else told, context.limits.end_token_ids, tools
        )
        reward, finish_reason = await _take_turns(context, place, dialogue, metrics, kept, said, rewards)
        trace = environment.trace()
        feedback = await environment.feedback() if finish_reason == "done" else _NO_ROOM
    except EnvironmentFailure as failure:
        reward, feedback, failed = 0.0, str(failure), True
        finish_reason = _failed(context, failure)
    return Attempt(
        dialogue=dialogue,
        instructions=instructions,
        report=AttemptReport(observation, trace, feedback, reward),
        success=not failed and reward >= context.limits.success_threshold,
        finish_reason=finish_reason,
        metrics=metrics.of_attempt(),
        turns=dialogue.turns,
        turn_rewards=None if failed else tuple(rewards[len(kept) :]),
    )


def _failed(context: EpisodeContext, failure: EnvironmentFailure) -> str:
    """The finish reason of an attempt that was not scored, or counts as zero."""
    as_zero = context.limits.failures_are_zero and failure.kind != "scorer_error"
    return failure.kind + AS_ZERO if as_zero else failure.kind


def _of_agent(context: EpisodeContext, played: AgentAttempt) -> Attempt:
    """What an agent played, as an attempt: its first sequence stands for it."""
    nothing = Dialogue(context.chat, (), context.limits.end_token_ids)
    conversations: list[Conversation] = [*played.sequences]
    first, *further = conversations or [nothing]
    failure, result = played.failure, played.result
    reward = 0.0 if result is None else result.reward
    return Attempt(
        dialogue=first,
        instructions=played.instructions,
        report=AttemptReport(
            played.observation,
            played.trace,
            str(failure) if result is None else result.feedback,
            reward,
        ),
        success=failure is None and reward >= context.limits.success_threshold,
        finish_reason="done" if failure is None else _failed(context, failure),
        metrics=played.metrics,
        further=further,
        calls=played.calls,
    )


def _require_shown(context: EpisodeContext, tools: Sequence[ToolSchema]) -> None:
    if tools and not context.chat.can_offer(tools):
        raise InputError(
            f"the environment {context.identity.task.environment} offers tools, but the policy's chat "
            "template does not show them and results, or does not write calls in a form that is read; use a "
            "policy whose template does, or the environment's plain protocol, such as "
            "environment.tool_format: plain of hotpotqa"
        )


async def _take_turns(
    context: EpisodeContext,
    place: TurnKey,
    dialogue: Dialogue,
    metrics: TurnMetrics,
    kept: Sequence[DialogueTurn],
    said: Said,
    rewards: list[float],
) -> tuple[float, str]:
    """Turns until the environment says that it is over, or the context is full; reward and finish reason.
    `rewards` gets the reward of each turn."""
    reward = 0.0
    if kept:
        metrics.add({"kept_turns": float(len(kept))})
    while True:
        turn = len(rewards)
        if context.room(dialogue) < 1:
            # A model wrote the instruction: it is worth nothing then, and its trial shows that.
            if turn == 0 and place.revision == 0 and context.instruction is None:
                raise InputError(
                    f"task {context.identity.task.task_id}: its prompt has {dialogue.length} tokens, but the "
                    f"policy's context holds {context.limits.context_length}; use smaller tasks or a longer "
                    "context"
                )
            return reward, "context"
        if turn < len(kept):
            answer = dialogue.add_turn(kept[turn].said, is_trained=False)
        else:
            answer = dialogue.add_turn(await _turn(context, place, dialogue, turn, said))
        transition = await context.environment.step(answer)
        if turn < len(kept) and (transition.done or tuple(transition.messages) != kept[turn].answer):
            raise _AnsweredOtherwise
        reward += transition.reward
        rewards.append(transition.reward)
        metrics.add(transition.metrics)
        if transition.done:
            return reward, "done"
        dialogue.add_messages(transition.messages)


async def _turn(
    context: EpisodeContext,
    place: TurnKey,
    dialogue: Dialogue,
    turn: int,
    said: Said,
) -> Generation:
    """What the policy says: as in an earlier try where the prompt is the same, else newly sampled."""
    if not context.limits.retries:
        return await context.sample(dialogue, place, turn)
    prompt = dialogue.token_ids
    if turn not in said or said[turn][0] != prompt:
        said[turn] = prompt, await context.sample(dialogue, place, turn)
    return said[turn][1]


@dataclass(frozen=True)
class Opened:
    """The prompt of a first attempt, and the tools that its policy may call."""

    messages: Sequence[Message]
    tools: Sequence[ToolSchema]


class HandPlayed:
    """An attempt whose turns somebody else makes, such as a person: without a model and its tokens, with the
    prompt, messages, reward, feedback and deadlines that a policy has.

    Its methods, and those of `environment` but `close`, raise `EnvironmentFailure` where the environment
    fails.
    """

    def __init__(
        self, plugin: EnvironmentPlugin[Any], settings: Any, task: Task, step_seconds: float
    ) -> None:
        part, _ = plugin.part(settings, task)
        self._prompts = part.plugin.prompts(part.settings) or PlainPrompts()
        self.environment = GuardedEnvironment(partial(plugin.open, settings, task), step_seconds)
        self.has_tools = False
        self._turns = 0
        self.reward = 0.0

    async def begin(self) -> Opened:
        observation = await self.environment.reset()
        tools = self.environment.tools()
        self.has_tools = bool(tools)
        return Opened(self._prompts.attempt(self.environment.instructions(), observation, []), tools)

    async def say(self, text: str) -> Transition:
        """One turn; its reward is added to `reward`."""
        form = HERMES if self.has_tools else None
        turn = read_turn(text, self._turns, self.environment.texts, form)
        self._turns += 1
        transition = await self.environment.step(turn)
        self.reward += transition.reward
        return transition
