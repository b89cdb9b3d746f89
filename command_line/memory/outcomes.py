"""How second attempts went with memory and without it: rates, intervals, and their difference."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from erl_pipeline.evaluation.statistics import Estimate, sampled_success_rate
from storage.memory.use import Comparison, Outcomes


@dataclass(frozen=True)
class Difference:
    """Success with memory less success without, and the ends of the 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """What a comparison shows; None where there is nothing to take a rate of or to compare with."""

    with_memory: Estimate | None
    without: Estimate | None
    without_same_iterations: Estimate | None
    difference: Difference | None
    """Against `without_same_iterations`, the attempts of equal policies, where there are some."""


def judge(comparison: Comparison) -> Verdict:
    """Rates of a comparison; tasks are the unit of chance."""
    with_memory, without, same = (
        _estimate(outcomes)
        for outcomes in (comparison.with_memory, comparison.without, comparison.without_same_iterations)
    )
    difference = None if with_memory is None or same is None else score_difference(with_memory, same)
    return Verdict(with_memory, without, same, difference)


def score_difference(with_memory: Estimate, without: Estimate) -> Difference:
    """Difference of two rates with the hybrid score interval of Newcombe 1998 (method 10)."""
    value = with_memory.value - without.value
    down = math.hypot(with_memory.value - with_memory.low, without.high - without.value)
    up = math.hypot(with_memory.high - with_memory.value, without.value - without.low)
    return Difference(value, max(-1.0, value - down), min(1.0, value + up))


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """The same for programs."""
    return asdict(verdict)


def verdict_lines(verdict: Verdict, what: str, others: str) -> list[str]:
    """The same for people; `what` was seen or not, such as `this entry`; `others` says what it is against."""
    if verdict.with_memory is None:
        return [f"second attempts: none followed a reflection that saw {what}"]
    lines = [_line(f"second attempts after a reflection that saw {what}", verdict.with_memory)]
    if verdict.without is None:
        return [*lines, f"there is no comparison: there are no {others}"]
    lines.append(_line(others, verdict.without))
    if verdict.without_same_iterations is None or verdict.difference is None:
        return [
            *lines,
            "there is no fair comparison: those others are from other iterations, hence of other policies",
        ]
    difference = verdict.difference
    lines.append(_line("of these in the same iterations", verdict.without_same_iterations))
    lines.append(
        f"difference in the same iterations: {difference.value:+.3f} ({difference.low:+.3f} to "
        f"{difference.high:+.3f}); retrieval is not drawn by lot, so this is a hint and no proof"
    )
    return lines


def _estimate(outcomes: Outcomes) -> Estimate | None:
    return sampled_success_rate(outcomes.by_task) if outcomes.attempts else None


def _line(what: str, estimate: Estimate) -> str:
    successes = round(estimate.value * estimate.attempts)
    return (
        f"{what}: {successes} of {estimate.attempts} succeeded, {estimate.value:.3f} "
        f"({estimate.low:.3f} to {estimate.high:.3f})"
    )
