"""Drawing tasks to replay by their buckets: the number of successes when each was last tried."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.methods.exgrpo.settings import BucketSettings


@dataclass(frozen=True)
class DrawnTask:
    """A task that is replayed, its bucket, and the probability of that bucket in each draw."""

    task_id: str
    bucket: int
    probability: float | None


def bucket_probabilities(
    buckets: Sequence[int], group_size: int, settings: BucketSettings
) -> dict[int, float]:
    """Bucket -> probability, over those buckets that hold a task (arXiv 2510.02245, section 4.1).

    A bucket is a number of successes out of `group_size`.
    """
    unit = 1.0 if settings.sigma_unit == "count" else 1.0 / group_size
    exponents = {
        bucket: -0.5 * ((bucket - settings.mean * group_size) * unit / settings.sigma) ** 2
        for bucket in buckets
    }
    largest = max(exponents.values())  # So that a narrow distribution far from all buckets stays above 0.
    weights = {bucket: math.exp(exponent - largest) for bucket, exponent in exponents.items()}
    total = math.fsum(weights.values())
    return {bucket: weight / total for bucket, weight in weights.items()}


def draw_by_bucket(
    tasks: Mapping[int, Sequence[str]],
    count: int,
    group_size: int,
    settings: BucketSettings,
    chance: random.Random,
) -> list[DrawnTask]:
    """`count` different tasks, or all where there are fewer.

    The number from each bucket is drawn by its probability. Where a bucket has too few tasks, the rest is
    drawn again from the others. Within a bucket all tasks are equally likely.

    Args:
        tasks: bucket -> its tasks; no bucket is empty.
    """
    probabilities = bucket_probabilities(sorted(tasks), group_size, settings)
    counts: Counter[int] = Counter()
    rest = min(count, sum(map(len, tasks.values())))
    while rest:
        room = [bucket for bucket in sorted(tasks) if counts[bucket] < len(tasks[bucket])]
        weights = bucket_probabilities(room, group_size, settings)
        counts.update(chance.choices(room, [weights[bucket] for bucket in room], k=rest))
        rest = 0
        for bucket in room:
            over = max(0, counts[bucket] - len(tasks[bucket]))
            counts[bucket] -= over
            rest += over
    return [
        DrawnTask(task_id, bucket, probabilities[bucket])
        for bucket in sorted(tasks)
        for task_id in chance.sample(sorted(tasks[bucket]), counts[bucket])
    ]


def draw_uniformly(tasks: Mapping[int, Sequence[str]], count: int, chance: random.Random) -> list[DrawnTask]:
    """`count` different tasks, or all where there are fewer, whatever their buckets are."""
    bucket_of = {task_id: bucket for bucket, members in tasks.items() for task_id in members}
    drawn = chance.sample(sorted(bucket_of), min(count, len(bucket_of)))
    return [DrawnTask(task_id, bucket_of[task_id], None) for task_id in drawn]
