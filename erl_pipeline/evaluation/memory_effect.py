"""Does memory help? Rewards with it and without it, where the seed drew who sees it; with 95 % intervals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import polars as pl

from erl_pipeline.statistics import Estimate, MeanEstimate, mean_over_tasks, sampled_success_rate
from storage.memory.credit import PRIOR, Observation, first_rounds, observations, of_entries
from storage.tables.trajectories import FREE, GUIDED


@dataclass(frozen=True)
class Arm:
    """The trajectories of one side. `gain` is their reward over that of other first attempts at the same task
    by the same policy, so that the difficulty of the tasks that were retried is taken out of it."""

    success: Estimate
    gain: MeanEstimate | None


@dataclass(frozen=True)
class MemoryEffect:
    """First reflections with memory and without it; None for a side that there is none of.

    Where memory is withheld from none, `guided` are those that searched it and there is no `effect`.
    """

    guided: Arm | None
    free: Arm | None
    effect: MeanEstimate | None
    """Reward of a guided trajectory less that of the free ones of its group, on the mean."""


def memory_effect(searches: pl.DataFrame) -> MemoryEffect:
    """The effect of memory as a whole; tasks are the unit of chance.

    Args:
        searches: as `storage.memory.use.memory_searches` gives them.
    """
    first = first_rounds(searches)
    searched = (pl.col("subgroup") == GUIDED) | (
        pl.col("subgroup").is_null() & (pl.col("memory_version") != "")
    )
    return MemoryEffect(
        guided=_arm(first.filter(searched.fill_null(False))),
        free=_arm(first.filter(pl.col("subgroup") == FREE)),
        effect=_mean(observations(searches)),
    )


def entry_credits(searches: pl.DataFrame) -> dict[str, MeanEstimate]:
    """Credit of each entry that observations were made of, with its interval; by id.

    The mean is shrunk as `storage.memory.credit` says: the observations of 0 count for the interval too, as
    if each were of one more task.
    """
    seen = of_entries(observations(searches)).items()
    return {entry_id: _shrunk(_by_task(found)) for entry_id, found in seen}


def _shrunk(values: dict[str, list[float]]) -> MeanEstimate:
    prior = {f"{PRIOR} of 0: {number}": [0.0] for number in range(PRIOR)}
    mean = mean_over_tasks({**values, **prior})
    return replace(mean, tasks=len(values), count=mean.count - PRIOR)


def _arm(rows: pl.DataFrame) -> Arm | None:
    if not rows.height:
        return None
    outcomes: defaultdict[str, list[bool]] = defaultdict(list)
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for task_id, success, reward, base in rows.select("task_id", "success", "reward", "base").iter_rows():
        outcomes[task_id].append(success)
        if base is not None:
            gains[task_id].append(reward - base)
    return Arm(sampled_success_rate(outcomes), mean_over_tasks(gains) if gains else None)


def _mean(found: list[Observation]) -> MeanEstimate | None:
    return mean_over_tasks(_by_task(found)) if found else None


def _by_task(found: Iterable[Observation]) -> dict[str, list[float]]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for each in found:
        values[each.task_id].append(each.difference)
    return values
