"""Statistics over seeds: means with intervals, differences seed by seed, and the correction for several
differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from erl_pipeline.statistics import student_coverage, student_quantile


@dataclass(frozen=True)
class SeedSummary:
    """Mean over independent seeds, their sample standard deviation (n - 1) and a 95 % interval of the mean.

    With one seed the spread is not known: `sd`, `low` and `high` are None.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    seeds: int


@dataclass(frozen=True)
class SeedDifference:
    """One figure less another, seed by seed; `summary` is of the differences.

    `p_value` is from Student's two-sided t test of their mean; None with one seed.
    """

    by_seed: Sequence[float]
    summary: SeedSummary
    p_value: float | None


def across_seeds(values: Sequence[float]) -> SeedSummary:
    """Mean, spread and Student's t interval of one figure per seed. Raises ValueError without values."""
    if not values:
        raise ValueError("no summary without seeds")
    mean = fmean(values)
    if len(values) == 1:
        return SeedSummary(mean, None, None, None, 1)
    sd = stdev(values)
    half_width = student_quantile(len(values) - 1) * sd / math.sqrt(len(values))
    return SeedSummary(mean, sd, mean - half_width, mean + half_width, len(values))


def seed_difference(ours: Sequence[float], theirs: Sequence[float]) -> SeedDifference:
    """`ours` less `theirs`, which hold one figure for each seed in the same order.

    If all differences are equal, they have no spread to judge their mean by: the p value is then 0, or 1 if
    they are 0. Raises ValueError without values, or if the two have different lengths.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"no pairs of {len(ours)} and {len(theirs)} seeds")
    by_seed = [one - other for one, other in zip(ours, theirs, strict=True)]
    summary = across_seeds(by_seed)
    if summary.sd is None:
        return SeedDifference(by_seed, summary, None)
    if summary.sd == 0:
        return SeedDifference(by_seed, summary, 0.0 if summary.mean else 1.0)
    t = abs(summary.mean) / (summary.sd / math.sqrt(summary.seeds))
    return SeedDifference(by_seed, summary, 1 - student_coverage(t, summary.seeds - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """p values adjusted for their number by Holm's step-down method (1979), in the same order.

    The smallest of m is multiplied by m, the next by m - 1, and so on. None is set below the one before it,
    or above 1. If every hypothesis with a value below 0.05 is rejected, the probability of any false
    rejection is at most 0.05, even for dependent tests.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
