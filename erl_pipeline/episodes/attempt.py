"""One attempt at a task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING

from erl_pipeline.environments.messages import Message, ToolSchema
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.episodes.context import EpisodeContext, Place
from erl_pipeline.episodes.dialogue import Dialogue
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure
from erl_pipeline.episodes.metrics import TurnMetrics
from erl_pipeline.episodes.rows import Outcome, situation, trajectory
from storage.errors import InputError
from storage.tables.trajectories import Trajectory

if TYPE_CHECKING:
    from storage.memory.view import MemoryHit

_NO_ROOM = "The conversation reached the end of the policy's context before the attempt was over."

Opening = Callable[[str, str], Sequence[Message] | Awaitable[Sequence[Message]]]
"""Makes the prompt of an attempt from the environment's instructions and first observation. It is awaited
where it asks memory first."""


@dataclass(frozen=True)
class Attempt:
    """One try at the task.

    `finish_reason` is `done`, `context` (no room was left for another turn), `environment_error`,
    `environment_timeout` or `scorer_error`. With the last three the reward is 0, and `report.feedback` says
    what happened, for people only.
    """

    dialogue: Dialogue
    instructions: str
    report: AttemptReport
    success: bool
    finish_reason: str
    metrics: Mapping[str, float]

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
        place: Place,
        parent: str | None,
        *,
        hits: Sequence[MemoryHit] | None = None,
        subgroup: str | None = None,
    ) -> Trajectory:
        """Its trajectory; `parent` is the reflection (or attempt) that led to it, `hits` are the entries of
        memory that were in its prompt."""
        return trajectory(
            context.identity,
            context.limits.by_role[place.role],
            self.dialogue,
            Outcome(
                role=place.role,
                revision=place.revision,
                parent=parent,
                reward=self.report.reward,
                success=self.success,
                finish_reason=self.finish_reason,
                truncated=self.dialogue.truncated or self.finish_reason == "context",
                feedback=self.report.feedback,
                hits=hits,
                subgroup=subgroup,
                metrics=self.metrics,
            ),
        )


async def play_attempt(context: EpisodeContext, place: Place, opening: Opening) -> Attempt:
    """Play the task once, from the beginning. A failure of the environment ends it and is recorded.

    Raises `InputError` when the prompt of a first attempt fills the policy's context, or when the environment
    offers tools that the policy's chat template does not show.
    """
    environment = context.environment
    dialogue = Dialogue(context.chat, (), context.limits.end_token_ids)
    metrics = TurnMetrics(context.mean_metrics)
    instructions = observation = trace = ""
    reward, failed = 0.0, False
    try:
        observation = await environment.reset()
        instructions = environment.instructions()
        told = opening(instructions, observation)
        tools = environment.tools()
        _require_shown(context, tools)
        dialogue = Dialogue(
            context.chat,
            await told if isawaitable(told) else told,
            context.limits.end_token_ids,
            tools,
        )
        reward, finish_reason = await _take_turns(context, place, dialogue, metrics)
        trace = environment.trace()
        feedback = await environment.feedback() if finish_reason == "done" else _NO_ROOM
    except EnvironmentFailure as failure:
        reward, finish_reason, feedback, failed = 0.0, failure.kind, str(failure), True
    return Attempt(
        dialogue=dialogue,
        instructions=instructions,
        report=AttemptReport(observation, trace, feedback, reward),
        success=not failed and reward >= context.limits.success_threshold,
        finish_reason=finish_reason,
        metrics=metrics.of_attempt(),
    )


def _require_shown(context: EpisodeContext, tools: Sequence[ToolSchema]) -> None:
    if tools and not context.chat.shows(tools):
        raise InputError(
            f"the environment {context.identity.task.environment} offers tools, but the policy's chat "
            "template does not show them; use a policy whose template does, or the environment's plain "
            "protocol, such as environment.tool_format: plain of hotpotqa"
        )


async def _take_turns(
    context: EpisodeContext, place: Place, dialogue: Dialogue, metrics: TurnMetrics
) -> tuple[float, str]:
    """Turns until the environment says that it is over, or the context is full; reward and finish reason."""
    reward, turn = 0.0, 0
    while True:
        if context.room(dialogue) < 1:
            if turn == 0 and place.revision == 0:
                raise InputError(
                    f"task {context.identity.task.task_id}: its prompt has {dialogue.length} tokens, but the "
                    f"policy's context holds {context.limits.context_length}; use smaller tasks or a longer "
                    "context"
                )
            return reward, "context"
        said = dialogue.add_turn(await context.sample(dialogue, place, turn))
        transition = await context.environment.step(said)
        reward += transition.reward
        metrics.add(transition.metrics)
        turn += 1
        if transition.done:
            return reward, "done"
        dialogue.add_messages(transition.messages)
