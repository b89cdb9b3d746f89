"""What is measured of a run in a comparison: its curve, the budgets at which curves are compared, and
statistics over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from erl_pipeline.evaluation.history import CurvePoint
from erl_pipeline.statistics import student_coverage, student_quantile


def value_at(x: Sequence[float], y: Sequence[float], at: float) -> float:
    """The curve at `at`, linear between its points. Raises ValueError outside them: no extrapolation."""
    _check_curve(x, y)
    if not x[0] <= at <= x[-1]:
        raise ValueError(f"the curve runs from {x[0]:g} to {x[-1]:g} and says nothing about {at:g}")
    return float(np.interp(at, x, y))


def area_under_curve(x: Sequence[float], y: Sequence[float], up_to: float | None = None) -> float:
    """Mean height of the curve from its first point to `up_to` (default: its last), by trapezoids.

    `x` is what is spent, such as iterations or generated tokens. Dividing by the width keeps the scale of
    `y`, so that a policy of constant success 0.4 has an area of 0.4 for any budget. Raises ValueError when
    the curve ends before `up_to`, or has no width.
    """
    end = x[-1] if up_to is None else up_to
    last = value_at(x, y, end)
    width = end - x[0]
    if width <= 0:
        raise ValueError(f"no area under a curve of width {width:g}; it needs two points")
    inside = [index for index, position in enumerate(x) if position < end]
    xs = [x[index] for index in inside] + [end]
    ys = [y[index] for index in inside] + [last]
    return float(np.trapezoid(ys, xs)) / width


def _check_curve(x: Sequence[float], y: Sequence[float]) -> None:
    if len(x) != len(y) or not x:
        raise ValueError(f"a curve needs as many positions as values, got {len(x)} and {len(y)}")
    if any(later <= earlier for earlier, later in pairwise(x)):
        raise ValueError(f"positions of a curve must rise, got {list(x)}")


SEEDS_FOR_INTERVAL = 3
"""Fewer seeds than these give neither an interval nor a p value: two often differ by the same by chance."""
_NO_SPREAD = 1e-12
"""Standard deviations up to this are 0 but for rounding."""


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

    @property
    def has_spread(self) -> bool:
        """Whether enough seeds differ, by more than rounding, for an interval or a p value to be known."""
        return self.seeds >= SEEDS_FOR_INTERVAL and self.sd is not None and self.sd > _NO_SPREAD


@dataclass(frozen=True)
class SeedDifference:
    """One figure less another, seed by seed; `summary` is of the differences.

    `p_value` is from Student's two-sided t test of their mean; None with fewer than `SEEDS_FOR_INTERVAL`
    seeds, and for differences that are all equal.
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

    If all differences are equal, they have no spread to judge their mean by: there is no p value then, or it
    is 1 if they are 0. Raises ValueError without values, or if the two have different lengths.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"no pairs of {len(ours)} and {len(theirs)} seeds")
    by_seed = [one - other for one, other in zip(ours, theirs, strict=True)]
    summary = across_seeds(by_seed)
    if summary.sd is None or not summary.has_spread:
        is_same = summary.seeds >= SEEDS_FOR_INTERVAL and abs(summary.mean) <= _NO_SPREAD
        return SeedDifference(by_seed, summary, 1.0 if is_same else None)
    t = abs(summary.mean) / (summary.sd / math.sqrt(summary.seeds))
    return SeedDifference(by_seed, summary, max(0.0, 1 - student_coverage(t, summary.seeds - 1)))


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


Curve = Sequence[CurvePoint]


@dataclass(frozen=True)
class Budgets:
    """The position on each axis at which all arms are read off."""

    generated_tokens: int
    policy_steps: int


def find_budgets(curves: Mapping[str, Sequence[Curve]], iterations: Mapping[str, int]) -> Budgets:
    """The budgets, from the first `iterations` of each arm; `curves` has a curve for each seed of each arm.

    The token budget is what the cheapest seed of the most expensive arm generated; the other runs need more
    iterations to spend as much (`iterations_to_spend`). The step budget is the fewest steps of the policy in
    any run of an arm that takes steps; 0 where one of them takes none, since a run with nothing left to learn
    from takes no step, however long it goes on. Nothing is read off by steps then.
    """
    reached = {arm: [at(curve, iterations[arm]) for curve in seeds] for arm, seeds in curves.items()}
    tokens = max(min(point.generated_tokens for point in seeds) for seeds in reached.values())
    taking_steps = [seeds for seeds in reached.values() if any(point.policy_steps for point in seeds)]
    steps = min((point.policy_steps for seeds in taking_steps for point in seeds), default=0)
    return Budgets(tokens, steps)


def iterations_to_spend(curve: Curve, budget: int, planned: int = 0) -> int:
    """The number of iterations after which a run will have generated `budget` tokens, at its latest rate.

    For a run that has generated them already, this is its number of iterations. With `planned` iterations it
    is what was estimated first after these: a run that was stopped while it went on beyond them ends where it
    would have without the stop. Raises ValueError for a run that generates nothing.
    """
    known = [point for point in curve if point.iteration <= planned]
    if planned and len(known) > 1 and len(known) < len(curve):
        first = iterations_to_spend(known, budget)
        if first > curve[-1].iteration or first == known[-1].iteration:
            return first
    last = curve[-1]
    if last.generated_tokens >= budget:
        return last.iteration
    before = curve[-2]
    rate = (last.generated_tokens - before.generated_tokens) / (last.iteration - before.iteration)
    if rate <= 0:
        raise ValueError(f"a run that generates no tokens never spends {budget}")
    return last.iteration + math.ceil((budget - last.generated_tokens) / rate)


def as_if_it_stayed(curve: Curve, tokens: int) -> list[CurvePoint]:
    """The curve to so many generated tokens, at least: one that ends before goes on as if its last success
    stayed."""
    last = curve[-1]
    goes_on = [replace(last, generated_tokens=tokens)] if last.generated_tokens < tokens else []
    return [*curve, *goes_on]


def at(curve: Curve, iteration: int) -> CurvePoint:
    """The point after an iteration. Raises ValueError when the run was not evaluated there."""
    for point in curve:
        if point.iteration == iteration:
            return point
    raise ValueError(f"the run was not evaluated after iteration {iteration}")


Axis = Literal["generated_tokens", "policy_steps"]

TokenMeasure = Literal["area_by_tokens", "success_at_tokens"]

Measure = TokenMeasure | Literal["area_by_steps", "success_at_steps"]

MEASURES: dict[Measure, str] = {
    "area_by_tokens": "area by tokens",
    "success_at_tokens": "success at the tokens",
    "area_by_steps": "area by steps",
    "success_at_steps": "success at the steps",
}
"""Field of `RunMeasures` -> its name in tables, for the measures by which arms are compared; the first is the
most important one."""


@dataclass(frozen=True)
class RunMeasures:
    """The figures of one run on the test tasks.

    `area_*` is the mean success along the curve up to a budget, `success_*` the success at the budget,
    `start` the success before training. The others are costs: `*_at_tokens` is what the run had spent when it
    reached the token budget, `generated_tokens_at_steps` its tokens when it reached the step budget. Figures
    by steps are None without a budget of steps, and for a run that never takes so many, such as one that
    changes only its prompt.
    """

    start: float
    area_by_tokens: float
    success_at_tokens: float
    area_by_steps: float | None
    success_at_steps: float | None
    iterations_at_tokens: float
    episodes_at_tokens: float
    policy_steps_at_tokens: float
    extractor_steps_at_tokens: float
    seconds_at_tokens: float
    generated_tokens_at_steps: float | None
    prompt_tokens_at_tokens: float
    teacher_tokens_at_tokens: float


def measure(curve: Curve, budgets: Budgets) -> RunMeasures:
    """The figures of one run. Raises ValueError when it ends before the token budget."""
    tokens, steps = budgets.generated_tokens, budgets.policy_steps
    has_steps = 0 < steps <= curve[-1].policy_steps

    def at_tokens(name: str) -> float:
        return _read(curve, "generated_tokens", name, tokens)

    def at_steps(name: str) -> float | None:
        return _read(curve, "policy_steps", name, steps) if has_steps else None

    return RunMeasures(
        start=curve[0].success,
        area_by_tokens=_area(curve, "generated_tokens", tokens),
        success_at_tokens=at_tokens("success"),
        area_by_steps=_area(curve, "policy_steps", steps) if has_steps else None,
        success_at_steps=at_steps("success"),
        iterations_at_tokens=at_tokens("iteration"),
        episodes_at_tokens=at_tokens("episodes"),
        policy_steps_at_tokens=at_tokens("policy_steps"),
        extractor_steps_at_tokens=at_tokens("extractor_steps"),
        seconds_at_tokens=at_tokens("seconds"),
        generated_tokens_at_steps=at_steps("generated_tokens"),
        prompt_tokens_at_tokens=at_tokens("prompt_tokens"),
        teacher_tokens_at_tokens=at_tokens("teacher_tokens"),
    )


def seed_band(
    curves: Sequence[Curve], axis: Axis, end: int, positions: int = 41
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Success of several seeds at equally spaced positions from 0 to `end`: the positions, the means, and the
    ends of their 95 % intervals."""
    places = [end * index / (positions - 1) for index in range(positions)]
    mean, low, high = ends(
        [across_seeds([_read(each, axis, "success", at) for each in curves]) for at in places]
    )
    return places, mean, [max(0.0, each) for each in low], [min(1.0, each) for each in high]


def ends(summaries: Sequence[SeedSummary]) -> tuple[list[float], list[float], list[float]]:
    """Means and the ends of their intervals; an interval that is not known is the mean."""
    return (
        [each.mean for each in summaries],
        [each.mean if each.low is None else each.low for each in summaries],
        [each.mean if each.high is None else each.high for each in summaries],
    )


def _read(curve: Curve, axis: Axis, name: str, position: float) -> float:
    points = _rising(curve, axis)
    return value_at(
        [getattr(each, axis) for each in points], [getattr(each, name) for each in points], position
    )


def _area(curve: Curve, axis: Axis, end: float) -> float:
    points = _rising(curve, axis)
    return area_under_curve(
        [getattr(each, axis) for each in points], [each.success for each in points], up_to=end
    )


def _rising(curve: Curve, axis: Axis) -> Curve:
    """The curve with only the first point of each position: if nothing is spent, nothing changes."""
    points = {getattr(point, axis): point for point in reversed(curve)}
    return list(reversed(points.values()))
