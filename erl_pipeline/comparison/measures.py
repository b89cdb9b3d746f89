"""The figures of one run, read off at equal generated tokens and at equal policy steps; and the band of
several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from erl_pipeline.comparison.budgets import Budgets, Curve
from erl_pipeline.evaluation.curves import area_under_curve, value_at
from erl_pipeline.evaluation.seeds import across_seeds

Axis = Literal["generated_tokens", "policy_steps"]

MEASURES = {
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
    reached the token budget, `generated_tokens_at_steps` its tokens when it reached the step budget.
    """

    start: float
    area_by_tokens: float
    success_at_tokens: float
    area_by_steps: float
    success_at_steps: float
    iterations_at_tokens: float
    episodes_at_tokens: float
    policy_steps_at_tokens: float
    extractor_steps_at_tokens: float
    seconds_at_tokens: float
    generated_tokens_at_steps: float


@dataclass(frozen=True)
class SeedBand:
    """Success of several seeds along an axis: its mean, and the 95 % interval of the mean."""

    positions: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def measure(curve: Curve, budgets: Budgets) -> RunMeasures:
    """The figures of one run. Raises ValueError when it ends before a budget."""
    tokens, steps = budgets.generated_tokens, budgets.policy_steps

    def at_tokens(name: str) -> float:
        return _read(curve, "generated_tokens", name, tokens)

    return RunMeasures(
        start=curve[0].success,
        area_by_tokens=_area(curve, "generated_tokens", tokens),
        success_at_tokens=at_tokens("success"),
        area_by_steps=_area(curve, "policy_steps", steps),
        success_at_steps=_read(curve, "policy_steps", "success", steps),
        iterations_at_tokens=at_tokens("iteration"),
        episodes_at_tokens=at_tokens("episodes"),
        policy_steps_at_tokens=at_tokens("policy_steps"),
        extractor_steps_at_tokens=at_tokens("extractor_steps"),
        seconds_at_tokens=at_tokens("seconds"),
        generated_tokens_at_steps=_read(curve, "policy_steps", "generated_tokens", steps),
    )


def seed_band(curves: Sequence[Curve], axis: Axis, end: int, positions: int = 41) -> SeedBand:
    """The curves of several seeds as one band, read at equally spaced positions from 0 to `end`."""
    places = [end * index / (positions - 1) for index in range(positions)]
    summaries = [across_seeds([_read(curve, axis, "success", place) for curve in curves]) for place in places]
    return SeedBand(
        places,
        [each.mean for each in summaries],
        [each.mean if each.low is None else max(0.0, each.low) for each in summaries],
        [each.mean if each.high is None else min(1.0, each.high) for each in summaries],
    )


def _read(curve: Curve, axis: Axis, name: str, position: float) -> float:
    points = _rising(curve, axis)
    return value_at(
        [getattr(each, axis) for each in points], [getattr(each, name) for each in points], position
    )


def _area(curve: Curve, axis: Axis, end: float) -> float:
    points = _rising(curve, axis)
    if end <= getattr(points[0], axis):  # No step was made, so the curve is a single point.
        return points[0].success
    return area_under_curve(
        [getattr(each, axis) for each in points], [each.success for each in points], up_to=end
    )


def _rising(curve: Curve, axis: Axis) -> Curve:
    """The curve with only the first point of each position: if nothing is spent, nothing changes."""
    points = {getattr(point, axis): point for point in reversed(curve)}
    return list(reversed(points.values()))
