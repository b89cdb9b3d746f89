"""What an iteration adds to the experience: which of its groups and attempts are stored."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from erl_pipeline.methods.exgrpo.experience import ACTIVE, RETIRED
from erl_pipeline.methods.exgrpo.settings import FIRST_ATTEMPT, Sampler, TierSettings
from storage.tables.scored import scored
from storage.tables.trajectories import Trajectory

TIERS = 4


def qualities(
    successes: Sequence[bool], responses: Sequence[Sequence[int]], settings: TierSettings
) -> list[float]:
    """Quality of each attempt of a group, in [0, 1]: the weighted sum of its success and its difference from
    the others.

    Args:
        responses: token ids; the vector of an attempt counts how often each token occurs.
    """
    vectors = [Counter(response) for response in responses]
    return [
        quality(success, mean_cosine(vectors, index), settings.success_weight)
        for index, success in enumerate(successes)
    ]


def quality(success: bool, cosine: float, success_weight: float) -> float:
    """`success_weight * success + (1 - success_weight) * (1 - cosine)`."""
    return success_weight * success + (1.0 - success_weight) * (1.0 - cosine)


def mean_cosine(vectors: Sequence[Counter[int]], index: int) -> float:
    """Mean cosine similarity of one vector to the others; 0 where it is alone."""
    others = [vector for place, vector in enumerate(vectors) if place != index]
    if not others:
        return 0.0
    return math.fsum(_cosine(vectors[index], other) for other in others) / len(others)


def tiers_of(ranked: Sequence[float]) -> list[int]:
    """The tier of each attempt of a group by its quality: 0 is the best quarter, 3 the worst. Of equal
    attempts the first ranks higher."""
    order = sorted(range(len(ranked)), key=lambda index: -ranked[index])
    tiers = [0] * len(ranked)
    for rank, index in enumerate(order):
        tiers[index] = rank * TIERS // len(ranked)
    return tiers


def _cosine(one: Counter[int], other: Counter[int]) -> float:
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return sum(count * other[token] for token, count in one.items()) / lengths if lengths else 0.0


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


def tried_tasks(rows: Sequence[Trajectory], replayed: Sequence[Trajectory]) -> list[TriedTask]:
    """The groups of first attempts, with what was replayed in each; in the order of the rows. Attempts that
    were not scored are in none, so that a group without any that was is not tried at all."""
    fresh: defaultdict[str, list[Trajectory]] = defaultdict(list)
    beside: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for row in scored(rows):
        if row.role == FIRST_ATTEMPT:
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
    known: Collection[int] | None,
) -> Iterator[tuple[dict[str, Any], Trajectory]]:
    """The attempts of a group that are stored, each with its row: the successes, or all with `tiers`.

    Args:
        known: digests of responses to the task that are stored already, which are not stored again; None
            to store them again.
    """
    ranked: list[float | None] = [None] * len(task.fresh)
    places: list[int | None] = [None] * len(task.fresh)
    if tiers is not None:
        found = qualities(
            [row.success for row in task.fresh], [row.response_token_ids for row in task.fresh], tiers
        )
        ranked, places = [*found], [*tiers_of(found)]
    seen = set(known or ())
    for row, quality, tier in zip(task.fresh, ranked, places, strict=True):
        digest = response_digest(row)
        if not any(row.response_mask) or not (row.success or sampler == "tiers"):
            continue
        if known is not None and digest in seen:
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
    tokens = [len(row.prompt_token_ids), *row.prompt_token_ids, *row.response_token_ids]
    hashed = hashlib.sha256(np.array(tokens, dtype="<i4").tobytes()).digest()
    return int.from_bytes(hashed[:8], "big") >> 1
