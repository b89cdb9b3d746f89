"""Comparing methods by their learning curves, at equal iterations and at equal generated tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from erl_pipeline.evaluation.curves import area_under_curve, value_at
from erl_pipeline.evaluation.history import CurvePoint


@dataclass(frozen=True)
class RunMeasures:
    """One run in figures. Costs are those of its first `iterations`; `*_at_budget` is where it had generated
    the token budget. Areas are mean success along the curve, by iteration and by generated token."""

    start: float
    final: float
    area_by_iteration: float
    success_at_budget: float
    area_by_tokens: float
    optimizer_steps_at_budget: float
    episodes: int
    generated_tokens: int
    optimizer_steps: int
    seconds: float


@dataclass(frozen=True)
class SeedBand:
    """Success of several seeds against generated tokens: their mean, least and most at each position."""

    tokens: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def token_budget(curves: Mapping[str, Sequence[Sequence[CurvePoint]]], iterations: int) -> int:
    """The generated tokens at which methods are compared, from their curves by method and seed.

    It is what the most expensive method spends in `iterations`, by its cheapest seed; the others need
    more iterations to spend as much (see `iterations_to_spend`).
    """
    return max(min(_at(curve, iterations).generated_tokens for curve in seeds) for seeds in curves.values())


def iterations_to_spend(curve: Sequence[CurvePoint], budget: int) -> int:
    """Iterations after which a run will have generated `budget` tokens, at the rate of its last ones.

    Its own number of iterations when it has. Raises ValueError for a run that generates nothing.
    """
    last = curve[-1]
    if last.generated_tokens >= budget:
        return last.iteration
    before = curve[-2]
    rate = (last.generated_tokens - before.generated_tokens) / (last.iteration - before.iteration)
    if rate <= 0:
        raise ValueError(f"a run that generates no tokens never spends {budget}")
    return last.iteration + math.ceil((budget - last.generated_tokens) / rate)


def measure(curve: Sequence[CurvePoint], iterations: int, budget: int) -> RunMeasures:
    """The figures of one run. Raises ValueError when it was not evaluated after `iterations` or ends before
    the budget."""
    final = _at(curve, iterations)
    success = [point.success for point in curve]
    tokens = [float(point.generated_tokens) for point in curve]
    return RunMeasures(
        start=curve[0].success,
        final=final.success,
        area_by_iteration=area_under_curve([point.iteration for point in curve], success, up_to=iterations),
        success_at_budget=value_at(tokens, success, budget),
        area_by_tokens=area_under_curve(tokens, success, up_to=budget),
        optimizer_steps_at_budget=value_at(tokens, [point.optimizer_steps for point in curve], budget),
        episodes=final.episodes,
        generated_tokens=final.generated_tokens,
        optimizer_steps=final.optimizer_steps,
        seconds=final.seconds,
    )


def seed_band(curves: Sequence[Sequence[CurvePoint]], budget: int, positions: int = 41) -> SeedBand:
    """The curves of several seeds as one, read at equal steps from 0 to the budget."""
    tokens = [budget * index / (positions - 1) for index in range(positions)]
    heights = [
        [
            value_at([p.generated_tokens for p in curve], [p.success for p in curve], position)
            for position in tokens
        ]
        for curve in curves
    ]
    columns = list(zip(*heights, strict=True))
    return SeedBand(
        tokens, [fmean(column) for column in columns], [min(c) for c in columns], [max(c) for c in columns]
    )


def _at(curve: Sequence[CurvePoint], iteration: int) -> CurvePoint:
    for point in curve:
        if point.iteration == iteration:
            return point
    raise ValueError(f"the run was not evaluated after iteration {iteration}")
