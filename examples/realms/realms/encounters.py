"""One encounter with a task of a streamed evaluation: the task under each condition, by one policy.

Each condition gives a note, or none. A first attempt gets it in its prompt. Where the attempt without any
note failed, a reflection on that failure gets the note as memory, and a second attempt follows. So all
retries of an encounter answer the same failure, and differ only in the note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from erl_pipeline.environments.prompt_format import PromptFormat
from erl_pipeline.episodes.agent_attempt import Opening
from erl_pipeline.episodes.attempt import Attempt, play_attempt, rewarded
from erl_pipeline.episodes.context import EpisodeContext, Outcome, TurnKey, trajectory
from erl_pipeline.episodes.dialogue import Dialogue
from storage.tables.trajectories import Trajectory

Condition = Literal["none", "own", "oracle", "other"]
"""Which note is given: none; the latest of the stream's own that helped; the true one of the realm; the true
one of another realm."""
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
"""In the order of the trajectories' `sample_index`. The first is the one without a note."""

STREAMED_ATTEMPT = "streamed_attempt"
STREAMED_REFLECTION = "streamed_reflection"
STREAMED_RETRY = "streamed_retry"


@dataclass(frozen=True)
class EncounterRules:
    """What all encounters have in common: prompts, and for each task's id the note of each condition."""

    prompts: PromptFormat
    notes: Mapping[str, Mapping[Condition, str | None]]


async def play_encounter(context: EpisodeContext, rules: EncounterRules) -> list[Trajectory]:
    """Play one task under all conditions; returns the trajectories, with the condition's place as
    `sample_index`."""
    notes = rules.notes[context.identity.task.task_id]
    rows: list[Trajectory] = []
    attempts: list[Attempt] = []
    for number, condition in enumerate(CONDITIONS):
        place = TurnKey(STREAMED_ATTEMPT, phase=number)
        opening = _opening(rules.prompts, _given(notes[condition]))
        attempts.append(await play_attempt(_under(context, number), place, opening))
        rows.append(attempts[-1].row(_under(context, number), place, parent=None))
    failed, parent = attempts[0], rows[0].trajectory_id
    if failed.can_be_reflected_on:
        for number, condition in enumerate(CONDITIONS):
            given = _given(notes[condition])
            rows += await _retry(_under(context, number), rules.prompts, failed, parent, given, number)
    return rows


async def _retry(
    context: EpisodeContext,
    prompts: PromptFormat,
    failed: Attempt,
    parent: str,
    memory: Sequence[str],
    number: int,
) -> list[Trajectory]:
    """A reflection and, where it is well-formed, the attempt that it leads to; nothing where the context has
    no room for it."""
    phase = len(CONDITIONS) + 2 * number
    messages = prompts.reflection(failed.instructions, failed.report, memory)
    dialogue = Dialogue(context.chat, messages, context.limits.end_token_ids)
    if context.room(dialogue) < 1:
        return []
    asked = TurnKey(STREAMED_REFLECTION, phase, revision=1)
    generation = await context.sample(dialogue, asked, turn=0)
    note = prompts.read_reflection(dialogue.add_turn(generation).text)
    outcome = Outcome(
        parent=parent,
        reward=0.0,
        success=False,
        finish_reason="ill_formed" if note is None else generation.finish_reason,
        truncated=dialogue.truncated,
        feedback=failed.report.feedback,
        text=note,
    )
    if note is None:
        return [trajectory(context, asked, dialogue, outcome)]
    place = TurnKey(STREAMED_RETRY, phase + 1, revision=1)
    retry = await play_attempt(context, place, _opening(prompts, [note]))
    reflection = rewarded(trajectory(context, asked, dialogue, outcome), retry)
    return [reflection, retry.row(context, place, parent=reflection.trajectory_id)]


def _opening(prompts: PromptFormat, notes: Sequence[str]) -> Opening:
    return lambda instructions, observation: prompts.attempt(instructions, observation, notes)


def _given(note: str | None) -> list[str]:
    return [] if note is None else [note]


def _under(context: EpisodeContext, number: int) -> EpisodeContext:
    """The same episode under one condition, so that its trajectories have ids of their own."""
    return replace(context, identity=replace(context.identity, sample_index=number))
