"""What an entry is worth, by a randomised experiment: in each group some trajectories get no memory.

A `guided` trajectory is compared with the trajectories of its group that got no memory (`free`): same task,
iteration, policy and role. The seed draws which ones are free, so the difference between the two is due to
memory or to chance. An observation is the reward of a guided trajectory minus the mean reward of the free
ones of its group. The credit of an entry is the mean of the n observations whose trajectories saw it, shrunk
towards 0 by n/(n + 8), as if `PRIOR` more observations of 0 had been made: luck in a few trials means little.

The reward of a reflection is that of the attempt that it led to, or 0 if it led to none. Only first rounds of
revision are compared: which trajectories reach a later round depends on what memory did before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from storage.tables.trajectories import FREE, GUIDED

PRIOR = 8
"""Number of observations of 0 that every entry begins with."""


@dataclass(frozen=True)
class Observation:
    """The reward of a guided trajectory minus the mean reward of the free ones of its group."""

    task_id: str
    iteration: int
    entry_ids: tuple[str, ...]
    """Entries in its prompt; empty if the memory had none for it."""
    difference: float


@dataclass(frozen=True)
class Evidence:
    """What trajectories show about one entry: the number of prompts that held it, and its observations."""

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
        searches: trajectories of the roles that get memory, as `memory_searches` gives them.
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
    """What the trajectories show about each entry that they saw, in the order of entry ids."""
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
    """Entry id -> the observations of the trajectories that saw it."""
    seen: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in found:
        for entry_id in observation.entry_ids:
            seen[entry_id].append(observation)
    return dict(seen)
