"""The stage that stores attempts of an iteration, so that they can be replayed later: which of its groups and
attempts, and with what quality."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.base import Settings
from erl_pipeline.config.replay import ACTIVE, EXPERIENCE, REPLAYED, RETIRED, Sampler, TierSettings
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.memory import opened_memory
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from erl_pipeline.stages.training.replay.quality import (
    Similarities,
    by_embedding,
    by_tokens,
    qualities,
    tiers_of,
)
from erl_pipeline.stages.training.replay.replayed import BEGUN, REPLAY, read_replayed
from erl_pipeline.stages.training.training_stage import TrainingSettings, borrowed_trainer
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.tables.scored import scored

if TYPE_CHECKING:
    from erl_pipeline.stages.training.replay.experience import Experience
    from storage.tables.trajectories import Trajectory

Score = Callable[["Sequence[Trajectory]"], "list[list[float]]"]
"""Computes, for each row, log-probabilities in the positions of its response; 0 where a token is not
trained."""


class ExperienceIndexSettings(Settings):
    """What is stored, and when that begins. `role`: that of the attempts which can be replayed."""

    role: str
    sampler: Sampler
    start_success: float
    tiers: TierSettings | None


class ScoredIndexSettings(ExperienceIndexSettings, TrainingSettings):
    """The same, with the trainer that computes log-probabilities of what is stored."""

    microbatch_tokens: int


def _compute(call: StageCall[ExperienceIndexSettings]) -> StageResult:
    return _index(call, None)


def _compute_scored(call: StageCall[ScoredIndexSettings]) -> StageResult:
    """Store them with log-probabilities under the policy that is about to be trained."""

    def score(rows: Sequence[Trajectory]) -> list[list[float]]:
        sequences = [trajectory_sequence(row) for row in rows]
        with borrowed_trainer(call) as trainer:
            found = trainer.logprobs(sequences, call.settings.microbatch_tokens)
        return [
            _in_place(row.response_mask, logprobs.tolist()) for row, logprobs in zip(rows, found, strict=True)
        ]

    return _index(call, score)


INDEX_EXPERIENCE = Stage(
    name="index_experience",
    version=3,
    output="experience",
    settings=ExperienceIndexSettings,
    compute=_compute,
)

INDEX_SCORED_EXPERIENCE = Stage(
    name=INDEX_EXPERIENCE.name,
    version=3,
    output="experience",
    settings=ScoredIndexSettings,
    compute=_compute_scored,
    code=("trainer",),
    needs="training",
)


def _index(call: StageCall[Any], score: Score | None) -> StageResult:
    from erl_pipeline.stages.training.replay.experience import kept_experience, write_experience
    from storage.tables.trajectories import read_trajectories

    settings, rollouts = call.settings, call.inputs[ROLLOUTS]
    rows = read_trajectories(trajectory_files(rollouts, call.resources.store))
    tried = tried_tasks(rows, read_replayed(call.inputs.get(REPLAY)).rows, settings.role)
    before = kept_experience(call.resources, call.inputs.get(EXPERIENCE))
    begun = before.begun or fresh_success(tried) > settings.start_success
    retired = before.retired()
    known = _known_digests(before, [each.task_id for each in tried])
    stored = [each for each in tried if is_stored(each, settings.sampler)] if begun else []
    groups = [group_row(each, settings.sampler, retired) for each in stored]
    done = retired | {row["task_id"] for row in groups if row["status"] == RETIRED}
    similar: Similarities = by_tokens
    if settings.tiers is not None and settings.tiers.diversity == "embedding":
        embedder = opened_memory(call.resources, settings.tiers.embedding_model).embedder
        similar = by_embedding(call.resources.store, before, [each.task_id for each in stored], embedder)
    found = [
        member
        for each in stored
        if each.task_id not in done
        for member in member_rows(
            each,
            settings.sampler,
            settings.tiers,
            rollouts.manifest.artifact_id,
            known.get(each.task_id, set()),
            similar,
        )
    ]
    members = [member for member, _ in found]
    if score is not None and found:
        version = call.inputs[CHECKPOINT].manifest.artifact_id
        for member, logprobs in zip(members, score([row for _, row in found]), strict=True):
            member.update(trainer_logprobs=logprobs, logprob_policy_version=version)
    written = write_experience(call.folder, groups, members)
    return StageResult(
        counters={BEGUN: int(begun), "members_added": len(members), **_counts(before, groups, members)},
        metrics=_dead_shares(tried, settings.role),
        rows=written,
        policy_version=rows[0].policy_version if rows else None,
    )


def _known_digests(experience: Experience, task_ids: Sequence[str]) -> dict[str, set[int]]:
    """Task -> digests of its stored responses."""
    import polars as pl

    of_them = experience.members.filter(pl.col("task_id").is_in(task_ids))
    known: dict[str, set[int]] = {}
    for task_id, digest in of_them.select("task_id", "response_digest").iter_rows():
        known.setdefault(task_id, set()).add(digest)
    return known


def _counts(
    before: Experience, groups: Sequence[dict[str, Any]], members: Sequence[dict[str, Any]]
) -> dict[str, int]:
    """What can be replayed after this iteration: tasks, attempts, and tasks by bucket."""
    import polars as pl

    from erl_pipeline.stages.training.replay.experience import GROUPS, MEMBERS

    after = before.followed_by(
        pl.DataFrame(groups, schema=pl.Schema(GROUPS.schema)),
        pl.DataFrame(members, schema=pl.Schema(MEMBERS.schema)),
        begun=True,
    )
    active, retired = after.latest_groups(), after.retired()
    kept = after.members if not retired else after.members.filter(~pl.col("task_id").is_in(list(retired)))
    buckets = active.group_by("successes").len().sort("successes")
    return {
        "tasks": len(active),
        "trajectories": len(kept),
        "retired": len(retired),
        **{f"bucket_{successes}": count for successes, count in buckets.iter_rows()},
    }


def _dead_shares(tried: Sequence[TriedTask], role: str) -> dict[str, float]:
    """Share of groups whose rewards are all equal, of fresh attempts alone and of mixed ones."""
    shares = {}
    for name, groups in (
        (role, [each for each in tried if not each.replayed]),
        (REPLAYED, [each for each in tried if each.replayed]),
    ):
        if groups:
            shares[f"zero_variance_{name}"] = sum(each.is_dead for each in groups) / len(groups)
    return shares


def _in_place(mask: Sequence[int], trained: Sequence[float]) -> list[float]:
    """The values in the positions of trained tokens, and 0 in all others."""
    values = iter(trained)
    return [next(values) if bit else 0.0 for bit in mask]


@dataclass(frozen=True)
class TriedTask:
    """One task of an iteration: its fresh attempts, and those that were replayed beside them."""

    fresh: Sequence[Trajectory]
    replayed: Sequence[Trajectory]

    @property
    def task_id(self) -> str:
        return self.fresh[0].task_id

    @property
    def successes(self) -> int:
        """Successes among fresh and replayed attempts (arXiv 2510.02245, algorithm 1)."""
        return sum(row.success for row in (*self.fresh, *self.replayed))

    @property
    def size(self) -> int:
        return len(self.fresh) + len(self.replayed)

    @property
    def is_dead(self) -> bool:
        """Whether all rewards are equal, so that the group teaches nothing."""
        return len({row.reward for row in (*self.fresh, *self.replayed)}) == 1


def tried_tasks(rows: Sequence[Trajectory], replayed: Sequence[Trajectory], role: str) -> list[TriedTask]:
    """The groups of the attempts of a role, with what was replayed in each; in the order of the rows.
    Attempts that were not scored are in none, so that a group without any that was is not tried at all."""
    fresh: defaultdict[str, list[Trajectory]] = defaultdict(list)
    beside: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for row in scored(rows):
        if row.role == role:
            fresh[row.group_id].append(row)
    for row in replayed:
        beside[row.group_id].append(row)
    return [TriedTask(members, beside[group]) for group, members in fresh.items()]


def fresh_success(tried: Sequence[TriedTask]) -> float:
    """Share of fresh attempts that succeeded."""
    rows = [row for task in tried for row in task.fresh]
    return sum(row.success for row in rows) / len(rows) if rows else 0.0


def is_stored(task: TriedTask, sampler: Sampler) -> bool:
    """Whether a group is stored. `tiers` stores all; otherwise a group without a success, fresh or replayed,
    is not stored (arXiv 2510.02245, algorithm 1)."""
    return sampler == "tiers" or task.successes > 0


def group_row(task: TriedTask, sampler: Sampler, retired: Collection[str]) -> dict[str, Any]:
    """The row of a group. A task whose attempts all succeed retires for good; with `tiers` none does."""
    done = task.successes == task.size or task.task_id in retired
    return {
        "task_id": task.task_id,
        "iteration": task.fresh[0].iteration,
        "policy_version": task.fresh[0].policy_version,
        "group_size": task.size,
        "fresh": len(task.fresh),
        "replayed": len(task.replayed),
        "successes": task.successes,
        "status": RETIRED if done and sampler != "tiers" else ACTIVE,
    }


def member_rows(
    task: TriedTask,
    sampler: Sampler,
    tiers: TierSettings | None,
    rollouts_id: str,
    known: Collection[int],
    similar: Similarities = by_tokens,
) -> Iterator[tuple[dict[str, Any], Trajectory]]:
    """The attempts of a group that are stored, each with its row: the successes, or all with `tiers`.
    `known`: digests of responses to the task that are stored already, which are not stored again."""
    ranked: list[float | None] = [None] * len(task.fresh)
    places: list[int | None] = [None] * len(task.fresh)
    if tiers is not None:
        found = qualities([row.success for row in task.fresh], similar(task.fresh), tiers)
        ranked, places = [*found], [*tiers_of(found, len(tiers.shares))]
    seen = set(known)
    for row, quality, tier in zip(task.fresh, ranked, places, strict=True):
        digest = response_digest(row)
        if not any(row.response_mask) or not (row.success or sampler == "tiers") or digest in seen:
            continue
        seen.add(digest)
        yield (
            {
                "task_id": row.task_id,
                "trajectory_id": row.trajectory_id,
                "rollouts_id": rollouts_id,
                "iteration": row.iteration,
                "response_digest": digest,
                "quality": quality,
                "tier": tier,
                "trainer_logprobs": None,
                "logprob_policy_version": None,
            },
            row,
        )


def response_digest(row: Trajectory) -> int:
    """Equal for equal prompts and responses; 63 bits of a SHA-256."""
    import numpy as np

    tokens = [len(row.prompt_token_ids), *row.prompt_token_ids, *row.response_token_ids]
    hashed = hashlib.sha256(np.array(tokens, dtype="<i4").tobytes()).digest()
    return int.from_bytes(hashed[:8], "big") >> 1
