"""What an entry was worth, by experiment: within a group memory is withheld from some, drawn by the seed.

A guided trajectory is compared with those of its group from whom memory was withheld (`free`): same task,
iteration, policy and role. Which ones are free was drawn, so what is left between the two is what memory did,
and chance. An observation is the reward of a guided trajectory less the mean reward of the free ones of its
group. The credit of an entry is the mean of the observations of those that saw it, shrunk to 0 by n/(n + 8):
as if `PRIOR` more observations of 0 had been made, so that luck in a few trials does not count for much.

The reward of a reflection is that of the attempt that it led to, 0 where it led to none. Only first rounds of
revision are compared: who comes to a later one depends on what memory did before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from storage.tables.trajectories import FREE, GUIDED

PRIOR = 8
"""Observations of 0 that every entry begins with."""


@dataclass(frozen=True)
class Observation:
    """The reward of a guided trajectory, less the mean of the free ones of its group."""

    task_id: str
    iteration: int
    entry_ids: tuple[str, ...]
    """What stood in its prompt; nothing where memory had nothing for it."""
    difference: float


@dataclass(frozen=True)
class Evidence:
    """What trajectories say of one entry: how many prompts it stood in, and its observations."""

    entry_id: str
    retrievals: int
    credit_sum: float
    credit_count: int


def with_observations(credit: float, count: int, total: float, number: int) -> tuple[float, int]:
    """Credit and count after `number` more observations that add up to `total`."""
    return (credit * (count + PRIOR) + total) / (count + number + PRIOR), count + number


def first_rounds(searches: pl.DataFrame) -> pl.DataFrame:
    """The trajectories of the first round of each role."""
    return searches.filter(pl.col("revision_index") == pl.col("revision_index").min().over("role"))


def observations(searches: pl.DataFrame) -> list[Observation]:
    """All comparisons that trajectories allow, in their order.

    Args:
        searches: trajectories of roles that memory is shown to, as `memory_searches` gives them.
    """
    free: defaultdict[str, list[float]] = defaultdict(list)
    rows = first_rounds(searches)
    for group, reward in rows.filter(subgroup=FREE).select("group_id", "reward").iter_rows():
        free[group].append(reward)
    guided = rows.filter(pl.col("subgroup") == GUIDED, pl.col("group_id").is_in(list(free)))
    return [
        Observation(task_id, iteration, tuple(entry_ids), reward - math.fsum(free[group]) / len(free[group]))
        for task_id, iteration, entry_ids, reward, group in guided.select(
            "task_id", "iteration", "memory_entry_ids", "reward", "group_id"
        ).iter_rows()
    ]


def evidence(searches: pl.DataFrame) -> list[Evidence]:
    """What the trajectories say of each entry that they saw, by entry id."""
    retrievals: defaultdict[str, int] = defaultdict(int)
    for entry_ids in searches["memory_entry_ids"].to_list():
        for entry_id in entry_ids:
            retrievals[entry_id] += 1
    seen = of_entries(observations(searches))
    return [
        Evidence(
            entry_id,
            retrievals[entry_id],
            math.fsum(each.difference for each in seen.get(entry_id, ())),
            len(seen.get(entry_id, ())),
        )
        for entry_id in sorted(retrievals)
    ]


def of_entries(found: Sequence[Observation]) -> dict[str, list[Observation]]:
    """The observations of those that saw each entry."""
    seen: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in found:
        for entry_id in observation.entry_ids:
            seen[entry_id].append(observation)
    return dict(seen)
