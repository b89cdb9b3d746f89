"""Which tasks an iteration replays, and which stored attempts of each are candidates.

Tasks are drawn by buckets, uniformly, or by tiers. `tiers` is a simplified variant of replay that is in no
paper; see `TierSettings`.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from erl_pipeline.methods.exgrpo.candidates import usable_members
from erl_pipeline.methods.exgrpo.collect import TIERS
from erl_pipeline.methods.exgrpo.experience import Experience
from erl_pipeline.methods.exgrpo.settings import (
    BucketSettings,
    DrawSettings,
    TierSettings,
    most_replayed,
)


@dataclass(frozen=True)
class ReplayedTask:
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
) -> list[ReplayedTask]:
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
        ReplayedTask(task_id, bucket, probabilities[bucket])
        for bucket in sorted(tasks)
        for task_id in chance.sample(sorted(tasks[bucket]), counts[bucket])
    ]


def draw_uniformly(
    tasks: Mapping[int, Sequence[str]], count: int, chance: random.Random
) -> list[ReplayedTask]:
    """`count` different tasks, or all where there are fewer, whatever their buckets are."""
    bucket_of = {task_id: bucket for bucket, members in tasks.items() for task_id in members}
    drawn = chance.sample(sorted(bucket_of), min(count, len(bucket_of)))
    return [ReplayedTask(task_id, bucket_of[task_id], None) for task_id in drawn]


def whole_shares(count: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers that add up to `count`: each share rounded down, and one more for the largest remainders;
    of equal ones the first."""
    exact = [count * share for share in shares]
    whole = [math.floor(each + 1e-9) for each in exact]
    remainders = [round(each - floor, 9) for each, floor in zip(exact, whole, strict=True)]
    order = sorted(range(len(shares)), key=lambda index: (-remainders[index], index))
    for index in order[: count - sum(whole)]:
        whole[index] += 1
    return whole


def draw_from_tiers(
    tiers: Sequence[Sequence[tuple[str, str]]], count: int, shares: Sequence[float], chance: random.Random
) -> list[tuple[str, str]]:
    """`count` attempts of different tasks, or fewer where there are no more tasks. What a tier lacks is drawn
    from the best tiers that have tasks left.

    Args:
        tiers: for each tier, the task id and trajectory id of each attempt.
    """
    shuffled = [chance.sample(list(tier), len(tier)) for tier in tiers]
    taken: dict[str, tuple[str, str]] = {}

    def draw(tier: Sequence[tuple[str, str]], wanted: int) -> None:
        for attempt in tier:
            if wanted == 0:
                return
            if attempt[0] not in taken:
                taken[attempt[0]] = attempt
                wanted -= 1

    for tier, wanted in zip(shuffled, whole_shares(count, shares), strict=True):
        draw(tier, wanted)
    for tier in shuffled:
        draw(tier, count - len(taken))
    return list(taken.values())


def on_policy_weight(epoch: int, settings: TierSettings) -> float:
    """Weight of fresh rows in a pass over the training tasks, counted from 0."""
    return max(settings.on_policy_least, settings.on_policy_start - settings.on_policy_decay * epoch)


@dataclass(frozen=True)
class Drawn:
    """A task that is replayed, and the members of which one is chosen; `candidates` says how many it had."""

    task_id: str
    members: pl.DataFrame
    candidates: int
    bucket: int | None = None
    probability: float | None = None


def draw_replay(
    experience: Experience, rules: DrawSettings, iteration: int, chance: random.Random
) -> list[Drawn]:
    """The different tasks that an iteration replays. Where `pick` is random, each has one member left."""
    if not experience.begun:
        return []
    if rules.sampler == "tiers":
        return _by_tier(experience, rules, iteration, chance)
    count = most_replayed(rules.share, rules.tasks_per_iteration)
    groups = experience.latest_groups()
    if rules.max_age is not None:
        young = usable_members(experience.members, iteration, rules.max_age, None)["task_id"].unique()
        groups = groups.filter(pl.col("task_id").is_in(young.implode()))
    groups = groups.with_columns(bucket=_bucket(rules.group_size))
    by_bucket = dict(groups.group_by("bucket", maintain_order=True).agg("task_id").sort("bucket").iter_rows())
    if not by_bucket:
        return []
    if rules.sampler == "uniform":
        tasks = draw_uniformly(by_bucket, count, chance)
    else:
        tasks = draw_by_bucket(by_bucket, count, rules.group_size, rules.buckets, chance)
    wanted = pl.Series([task.task_id for task in tasks], dtype=pl.String)
    of_drawn = experience.members.filter(pl.col("task_id").is_in(wanted.implode()))
    usable = usable_members(of_drawn, iteration, rules.max_age, rules.max_per_task)
    members = usable.partition_by("task_id", as_dict=True)
    return [
        Drawn(
            task.task_id,
            _one_of(members[(task.task_id,)], chance) if rules.pick == "random" else members[(task.task_id,)],
            len(members[(task.task_id,)]),
            task.bucket,
            task.probability,
        )
        for task in tasks
    ]


def _bucket(group_size: int) -> pl.Expr:
    """A group's successes, out of `group_size` attempts. In a group that had fewer, since some were not
    scored, the number that has the same rate, rounded."""
    attempts = pl.col("group_size")
    return (2 * group_size * pl.col("successes") + attempts) // (2 * attempts)


def _by_tier(
    experience: Experience, rules: DrawSettings, iteration: int, chance: random.Random
) -> list[Drawn]:
    newest = experience.members.tail(rules.tiers.capacity)
    usable = usable_members(newest, iteration, rules.max_age, rules.max_per_task)
    tiers = [
        usable.filter(pl.col("tier") == tier).select("task_id", "trajectory_id").rows()
        for tier in range(TIERS)
    ]
    count = most_replayed(rules.share, rules.tasks_per_iteration)
    attempts = draw_from_tiers(tiers, count, rules.tiers.shares, chance)
    ids = pl.Series([row_id for _, row_id in attempts], dtype=pl.String)
    drawn = usable.filter(pl.col("trajectory_id").is_in(ids.implode()))
    members = drawn.partition_by("task_id", as_dict=True)
    sizes = dict(usable.group_by("task_id").len().iter_rows())
    return [Drawn(task_id, members[(task_id,)], sizes[task_id]) for task_id, _ in attempts]


def _one_of(members: pl.DataFrame, chance: random.Random) -> pl.DataFrame:
    place = chance.randrange(len(members))
    return members[place : place + 1]
