"""The budgets at which arms are compared: generated tokens and policy steps that every run must reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.evaluation.history import CurvePoint

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
    any run. All arms are planned with the same number of steps, but a run with nothing left to learn from
    takes none, however long it goes on.
    """
    reached = {arm: [at(curve, iterations[arm]) for curve in seeds] for arm, seeds in curves.items()}
    tokens = max(min(point.generated_tokens for point in seeds) for seeds in reached.values())
    steps = min(point.policy_steps for seeds in reached.values() for point in seeds)
    return Budgets(tokens, steps)


def iterations_to_spend(curve: Curve, budget: int) -> int:
    """The number of iterations after which a run will have generated `budget` tokens, at its latest rate.

    For a run that has generated them already, this is its number of iterations. Raises ValueError for a run
    that generates nothing.
    """
    last = curve[-1]
    if last.generated_tokens >= budget:
        return last.iteration
    before = curve[-2]
    rate = (last.generated_tokens - before.generated_tokens) / (last.iteration - before.iteration)
    if rate <= 0:
        raise ValueError(f"a run that generates no tokens never spends {budget}")
    return last.iteration + math.ceil((budget - last.generated_tokens) / rate)


def at(curve: Curve, iteration: int) -> CurvePoint:
    """The point after an iteration. Raises ValueError when the run was not evaluated there."""
    for point in curve:
        if point.iteration == iteration:
            return point
    raise ValueError(f"the run was not evaluated after iteration {iteration}")
