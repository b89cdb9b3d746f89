"""Which episode this is, how its turns are sampled, and what happened in it as trajectory rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.dialogue import Dialogue
from storage.artifacts.recipe import derive_seed
from storage.tables.trajectories import Trajectory, trajectory_id

if TYPE_CHECKING:
    from storage.memory.view import MemoryHit


@dataclass(frozen=True)
class RoleLimits:
    """How the turns of one role are sampled: by which model, at which temperature, up to how many tokens.

    `model` is None where they are sampled by a model that somebody else serves, not by one of the run.
    """

    temperature: float
    max_new_tokens: int
    model: str | None = "policy"


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of episodes.

    `context_length` in tokens and `end_token_ids` are the tokenizer's and model's; an attempt succeeded
    when its reward is at least `success_threshold`; `step_seconds` is the deadline of each call of an
    environment; `by_role` has an entry for each role that the method samples. An attempt that the environment
    failed is played again at most `retries` times. With `failures_are_zero` it counts as one of reward 0, if
    it was not its scorer that failed.
    """

    context_length: int
    end_token_ids: frozenset[int]
    success_threshold: float
    step_seconds: float
    by_role: Mapping[str, RoleLimits]
    retries: int = 0
    failures_are_zero: bool = False


@dataclass(frozen=True)
class Provenance:
    """What every trajectory of a shard says about where it came from.

    `policy_versions` holds the artifact id of each model that is sampled, by the model's name.
    """

    recipe_id: str
    iteration: int
    policy_versions: Mapping[str, str]
    tokenizer_digest: str
    memory_version: str
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

    def seed(self, role: str, revision: int, turn: int) -> int:
        """Seed of one turn: (run seed, iteration, task, sample, role, revision, turn). Rows hold the seed of
        turn 0."""
        origin = self.provenance
        return derive_seed(
            origin.run_seed, origin.iteration, self.task.task_id, self.sample_index, role, revision, turn
        )


def group_id(iteration: int, task_id: str, role: str, revision: int) -> str:
    """The group in which a trajectory's reward is compared."""
    return f"{iteration}/{task_id}/{role}/{revision}"


def opening_messages(row: Trajectory) -> tuple[Message, ...]:
    """The messages of a trajectory before the policy first spoke."""
    messages: list[Message] = json.loads(row.messages)
    spoken = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return tuple(messages[:spoken])


def situation(opening: Sequence[Message], feedback: str) -> str:
    """The text whose embedding is the key of a memory entry; `opening` is what the policy was told."""
    return f"{opening[-1]['content']}\n{feedback}"


@dataclass(frozen=True)
class Outcome:
    """What a conversation of an episode led to; the names are those of the columns.

    `parent` is the trajectory that led to this one, `text` a reflection as it is used. `hits` are the memory
    entries that were in the prompt; None where no memory was asked. `subgroup` is its part of a group that is
    split. `metrics` are the environment's.
    """

    role: str
    revision: int
    parent: str | None
    reward: float
    success: bool
    finish_reason: str
    truncated: bool
    feedback: str
    text: str | None = None
    hits: Sequence[MemoryHit] | None = None
    subgroup: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def trajectory(
    episode: EpisodeIdentity, limits: RoleLimits, dialogue: Dialogue, outcome: Outcome
) -> Trajectory:
    """The row of one conversation."""
    task, origin, role, revision = episode.task, episode.provenance, outcome.role, outcome.revision
    return Trajectory(
        trajectory_id=trajectory_id(origin.recipe_id, task.task_id, episode.sample_index, role, revision),
        episode_id=episode.episode_id,
        parent_trajectory_id=outcome.parent,
        iteration=origin.iteration,
        task_id=task.task_id,
        task_type=task.task_type,
        environment=task.environment,
        role=role,
        revision_index=revision,
        sample_index=episode.sample_index,
        group_id=group_id(origin.iteration, task.task_id, role, revision),
        subgroup=outcome.subgroup,
        prompt_token_ids=dialogue.prompt_token_ids,
        response_token_ids=tuple(dialogue.response_token_ids),
        response_mask=tuple(dialogue.response_mask),
        behaviour_logprobs=tuple(dialogue.behaviour_logprobs),
        temperature=limits.temperature,
        policy_version="" if limits.model is None else origin.policy_versions[limits.model],
        tokenizer_digest=origin.tokenizer_digest,
        reward=outcome.reward,
        success=outcome.success,
        finish_reason=outcome.finish_reason,
        truncated=outcome.truncated,
        feedback=outcome.feedback,
        metrics=json.dumps(dict(outcome.metrics)),
        messages=json.dumps(dialogue.messages, ensure_ascii=False),
        text=outcome.text,
        memory_version="" if outcome.hits is None else origin.memory_version,
        memory_entry_ids=tuple(hit.entry.entry_id for hit in outcome.hits or ()),
        seed=episode.seed(role, revision, 0),
        task_payload=json.dumps(dict(task.payload), sort_keys=True, ensure_ascii=False),
    )
