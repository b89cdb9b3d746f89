"""Does memory help? Rewards with and without memory, with 95 % intervals; the seed drew who sees memory."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import polars as pl

from erl_pipeline.statistics import Estimate, MeanEstimate, mean_over_tasks, sampled_success_rate
from storage.memory.credit import Observation, first_rounds, observations, of_entries
from storage.memory.operations import PRIOR
from storage.tables.trajectories import FREE, GUIDED


@dataclass(frozen=True)
class MemoryArm:
    """The trajectories of one side: with memory, or without. `gain` is their reward less that of other first
    attempts at the same task by the same policy, which removes the difficulty of the retried tasks."""

    success: Estimate
    gain: MeanEstimate | None


@dataclass(frozen=True)
class MemoryEffect:
    """First reflections with memory (`guided`) and without it (`free`); None for a side without any.

    If memory is withheld from none, `guided` are those that searched it, and there is no `effect`.
    """

    guided: MemoryArm | None
    free: MemoryArm | None
    effect: MeanEstimate | None
    """Mean difference between the reward of a guided trajectory and that of the free ones of its group."""


def memory_effect(searches: pl.DataFrame) -> MemoryEffect:
    """The effect of memory as a whole; tasks are the independent units of its intervals."""
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
    """The credit of each entry that has observations, with its interval, by id.

    The mean is shrunk towards 0 as `storage.memory.credit` describes. The added observations of 0 count for
    the interval too, as if each came from one more task.
    """
    seen = of_entries(observations(searches)).items()
    return {entry_id: _shrunk(_by_task(found)) for entry_id, found in seen}


def _shrunk(values: dict[str, list[float]]) -> MeanEstimate:
    prior = {f"{PRIOR} of 0: {number}": [0.0] for number in range(PRIOR)}
    mean = mean_over_tasks({**values, **prior})
    return replace(mean, tasks=len(values), count=mean.count - PRIOR)


def _arm(rows: pl.DataFrame) -> MemoryArm | None:
    if not rows.height:
        return None
    outcomes: defaultdict[str, list[bool]] = defaultdict(list)
    gains: defaultdict[str, list[float]] = defaultdict(list)
    for task_id, success, reward, base in rows.select("task_id", "success", "reward", "base").iter_rows():
        outcomes[task_id].append(success)
        if base is not None:
            gains[task_id].append(reward - base)
    return MemoryArm(sampled_success_rate(outcomes), mean_over_tasks(gains) if gains else None)


def _mean(found: list[Observation]) -> MeanEstimate | None:
    return mean_over_tasks(_by_task(found)) if found else None


def _by_task(found: Iterable[Observation]) -> dict[str, list[float]]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for each in found:
        values[each.task_id].append(each.difference)
    return values
