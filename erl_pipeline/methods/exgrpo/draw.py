"""Which tasks an iteration replays, and which stored attempts of each are candidates."""

from __future__ import annotations

import random
from dataclasses import dataclass

import polars as pl

from erl_pipeline.methods.exgrpo.buckets import draw_by_bucket, draw_uniformly
from erl_pipeline.methods.exgrpo.candidates import usable_members
from erl_pipeline.methods.exgrpo.experience import Experience
from erl_pipeline.methods.exgrpo.settings import (
    BucketSettings,
    Pick,
    Sampler,
    TierSettings,
    most_replayed,
)
from erl_pipeline.methods.exgrpo.tiers import TIERS, draw_from_tiers


@dataclass(frozen=True)
class DrawRules:
    """The settings of a draw; see `ReplayConfig` for each."""

    sampler: Sampler
    share: float
    tasks_per_iteration: int
    group_size: int
    buckets: BucketSettings
    pick: Pick
    tiers: TierSettings
    max_age: int | None
    max_per_task: int | None


@dataclass(frozen=True)
class Drawn:
    """A task that is replayed, and the members of which one is chosen; `candidates` says how many it had."""

    task_id: str
    members: pl.DataFrame
    candidates: int
    bucket: int | None = None
    probability: float | None = None


def draw_replay(
    experience: Experience, rules: DrawRules, iteration: int, chance: random.Random
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


def _by_tier(experience: Experience, rules: DrawRules, iteration: int, chance: random.Random) -> list[Drawn]:
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
