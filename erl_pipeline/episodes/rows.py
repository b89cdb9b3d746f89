"""Turning what happened in an episode into trajectory rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from erl_pipeline.environments.base import AttemptReport, Task
from erl_pipeline.episodes.dialogue import Dialogue
from erl_pipeline.episodes.prompts import Message
from storage.artifacts.recipe import derive_seed
from storage.memory.view import MemoryHit
from storage.tables.trajectories import Trajectory, trajectory_id


@dataclass(frozen=True)
class Provenance:
    """What every trajectory of a shard says about where it came from."""

    recipe_id: str
    iteration: int
    policy_version: str
    tokenizer_digest: str
    memory_version: str
    temperature: float
    run_seed: int


@dataclass(frozen=True)
class EpisodeIdentity:
    """Which episode this is; its ids and random numbers derive from it."""

    task: Task
    sample_index: int
    provenance: Provenance

    @cached_property
    def episode_id(self) -> str:
        return trajectory_id(self.provenance.recipe_id, self.task.task_id, self.sample_index)

    def seed(self, phase: str, revision: int, turn: int) -> int:
        """Seed of one turn: (run seed, iteration, task, sample, phase, revision, turn)."""
        origin = self.provenance
        return derive_seed(
            origin.run_seed, origin.iteration, self.task.task_id, self.sample_index, phase, revision, turn
        )


@dataclass(frozen=True)
class Attempt:
    """One try at the task. `finish_reason` is `done` or `context` (no room was left for another turn)."""

    dialogue: Dialogue
    opening: Sequence[Message]
    report: AttemptReport
    success: bool
    finish_reason: str

    def situation(self, feedback: str) -> str:
        """What memory is searched by: the task as it was told, and the feedback."""
        return situation(self.opening, feedback)


@dataclass(frozen=True)
class Reflection:
    """What the policy wrote on a failed attempt; `text` is None when it is ill-formed."""

    dialogue: Dialogue
    text: str | None
    hits: Sequence[MemoryHit]
    finish_reason: str


def opening_messages(row: Trajectory) -> tuple[Message, ...]:
    """The messages of a trajectory before the policy first spoke."""
    messages = json.loads(row.messages)
    spoken = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return tuple(messages[:spoken])


def situation(opening: Sequence[Message], feedback: str) -> str:
    """The text whose embedding is the key of a memory entry; `opening` is what the policy was told."""
    return f"{opening[-1]['content']}\n{feedback}"


def attempt_row(
    episode: EpisodeIdentity,
    attempt: Attempt,
    role: Literal["first_attempt", "second_attempt"],
    revision: int,
    parent: str | None,
) -> Trajectory:
    """The trajectory of an attempt; `parent` is the reflection (or attempt) that led to it."""
    return _row(
        episode,
        attempt.dialogue,
        role,
        revision,
        parent,
        reward=attempt.report.reward,
        success=attempt.success,
        finish_reason=attempt.finish_reason,
        truncated=attempt.dialogue.truncated or attempt.finish_reason == "context",
        feedback=attempt.report.feedback,
        text=None,
        hits=(),
        memory_version="",
    )


def reflection_row(
    episode: EpisodeIdentity, reflection: Reflection, failed: Attempt, revision: int, parent: str
) -> Trajectory:
    """The trajectory of a reflection on `failed`, with the feedback it answers.

    Its reward is that of the attempt it leads to, 0 until that is known.
    """
    return _row(
        episode,
        reflection.dialogue,
        "reflection",
        revision,
        parent,
        reward=0.0,
        success=False,
        finish_reason=reflection.finish_reason if reflection.text is not None else "ill_formed",
        truncated=reflection.dialogue.truncated,
        feedback=failed.report.feedback,
        text=reflection.text,
        hits=reflection.hits,
        memory_version=episode.provenance.memory_version,
    )


def _row(
    episode: EpisodeIdentity,
    dialogue: Dialogue,
    role: Literal["first_attempt", "reflection", "second_attempt"],
    revision: int,
    parent: str | None,
    *,
    reward: float,
    success: bool,
    finish_reason: str,
    truncated: bool,
    feedback: str,
    text: str | None,
    hits: Sequence[MemoryHit],
    memory_version: str,
) -> Trajectory:
    task, origin = episode.task, episode.provenance
    return Trajectory(
        trajectory_id=trajectory_id(origin.recipe_id, task.task_id, episode.sample_index, role, revision),
        episode_id=episode.episode_id,
        parent_trajectory_id=parent,
        iteration=origin.iteration,
        task_id=task.task_id,
        task_type=task.task_type,
        environment=task.environment,
        role=role,
        revision_index=revision,
        sample_index=episode.sample_index,
        group_id=f"{origin.iteration}/{task.task_id}/{role}/{revision}",
        subgroup=None,
        prompt_token_ids=dialogue.prompt_token_ids,
        response_token_ids=tuple(dialogue.response_token_ids),
        response_mask=tuple(dialogue.response_mask),
        behaviour_logprobs=tuple(dialogue.behaviour_logprobs),
        temperature=origin.temperature,
        policy_version=origin.policy_version,
        tokenizer_digest=origin.tokenizer_digest,
        reward=reward,
        success=success,
        finish_reason=finish_reason,
        truncated=truncated,
        feedback=feedback,
        messages=json.dumps(dialogue.messages, ensure_ascii=False),
        text=text,
        memory_version=memory_version,
        memory_entry_ids=tuple(hit.entry.entry_id for hit in hits),
        seed=episode.seed(role, revision, 0),
        task_payload=json.dumps(dict(task.payload), sort_keys=True, ensure_ascii=False),
    )
