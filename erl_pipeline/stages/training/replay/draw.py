"""Which tasks an iteration replays, which stored attempts of each are candidates, and the files of what is
replayed.

Tasks are drawn by buckets, uniformly, or by tiers. `tiers` is a simplified variant of replay that is in no
paper; see `TierSettings`.
"""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa

from erl_pipeline.config.replay import (
    REPLAYED,
    BucketSettings,
    DrawSettings,
    Entropy,
    TierSettings,
    most_replayed,
)
from erl_pipeline.episodes.context import group_id
from erl_pipeline.stages.training.replay.experience import Candidate, Experience
from erl_pipeline.stages.training.replay.replayed import REPLAYED_FILE
from storage.tables.parquet import TableFormat, write_rows
from storage.tables.trajectories import Trajectory, trajectory_id, write_trajectories


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
    drawn again from the others. Within a bucket all tasks are equally likely. `tasks`: bucket -> its tasks;
    no bucket is empty.
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
    from the best tiers that have tasks left. `tiers`: for each tier, the task id and trajectory id of each
    attempt."""
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
    # A success may have no row that can be trained on, and rows grow too old.
    stored = usable_members(experience.members, iteration, rules.max_age, None)["task_id"].unique()
    groups = experience.latest_groups().filter(pl.col("task_id").is_in(stored.implode()))
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
        for tier in range(len(rules.tiers.shares))
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


def usable_members(
    members: pl.DataFrame, iteration: int, max_age: int | None, max_per_task: int | None
) -> pl.DataFrame:
    """Members that are young enough, and of each task only the newest `max_per_task`; in the order in which
    they were stored.

    `max_age` is the largest age at `iteration`, in iterations.
    """
    if max_age is not None:
        members = members.filter(pl.col("iteration") >= iteration - max_age)
    if max_per_task is not None:
        newer = pl.col("trajectory_id").cum_count(reverse=True).over("task_id")
        members = members.filter(newer <= max_per_task)
    return members


SELECTION_FILE = "replay/selection.parquet"

SELECTION = TableFormat(
    name="replay_selection",
    version=1,
    schema=pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # the task
            pa.field("bucket", pa.int32()),  # successes of its group; null where no buckets were drawn
            pa.field("bucket_probability", pa.float64()),  # chance of that bucket
            pa.field("trajectory_id", pa.string(), nullable=False),  # the stored attempt
            pa.field("rollouts_id", pa.string(), nullable=False),  # the artifact of its iteration's rollouts
            pa.field("candidates", pa.int32(), nullable=False),  # stored attempts to choose from
            pa.field("entropy", pa.float64()),  # of the chosen one; null where none was computed
            pa.field("entropy_kind", pa.string()),  # how it was computed
            pa.field("entropy_policy_version", pa.string()),  # the policy under which it was computed
        ]
    ),
    dictionary=("rollouts_id", "entropy_kind", "entropy_policy_version"),
)


@dataclass(frozen=True)
class Selected:
    """A stored attempt that is replayed, and the draw of its task. `entropies` are those of all candidates of
    the task, the chosen one's first, and empty where none were computed."""

    chosen: Candidate
    drawn: Drawn
    entropies: tuple[float, ...] = ()


def replay_row(source: Trajectory, recipe_id: str, iteration: int, slot: int) -> Trajectory:
    """A stored attempt as it is trained on again: in the group of the fresh attempts of an iteration, with
    the policy version and the log-probabilities that it was stored with. `slot`: its place in the group,
    which no fresh attempt has."""
    return replace(
        source,
        trajectory_id=trajectory_id(recipe_id, source.trajectory_id, REPLAYED),
        parent_trajectory_id=source.trajectory_id,
        iteration=iteration,
        role=REPLAYED,
        sample_index=slot,
        group_id=group_id(iteration, source.task_id, source.role, 0),
    )


def write_replay(
    folder: Path,
    rows: Sequence[Trajectory],
    selected: Sequence[Selected],
    entropy: Entropy | None,
    policy_version: str,
) -> dict[str, int]:
    """Write both files; returns the number of rows of each. `entropy`: the kind that was computed, under the
    policy `policy_version`; None where none was."""
    (folder / REPLAYED_FILE).parent.mkdir()
    selection = (
        {
            "task_id": each.drawn.task_id,
            "bucket": each.drawn.bucket,
            "bucket_probability": each.drawn.probability,
            "trajectory_id": each.chosen.row.trajectory_id,
            "rollouts_id": each.chosen.rollouts_id,
            "candidates": each.drawn.candidates,
            "entropy": each.entropies[0] if each.entropies else None,
            "entropy_kind": entropy,
            "entropy_policy_version": None if entropy is None else policy_version,
        }
        for each in selected
    )
    return {
        REPLAYED_FILE: write_trajectories(folder / REPLAYED_FILE, rows),
        SELECTION_FILE: write_rows(folder / SELECTION_FILE, selection, SELECTION),
    }
