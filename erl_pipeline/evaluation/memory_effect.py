"""How attempts went with retrieved memory and without it: rates, intervals, their difference."""

from __future__ import annotations

from dataclasses import dataclass

from erl_pipeline.statistics import Estimate, RateDifference, rate_difference, sampled_success_rate
from storage.memory.use import Comparison, Outcomes


@dataclass(frozen=True)
class MemoryEffect:
    """What a comparison shows; None where there is nothing to take a rate of or to compare with."""

    with_memory: Estimate | None
    without: Estimate | None
    without_same_iterations: Estimate | None
    difference: RateDifference | None
    """Against `without_same_iterations`, the attempts of equal policies, where there are some."""


def memory_effect(comparison: Comparison) -> MemoryEffect:
    """Rates of a comparison; tasks are the unit of chance."""
    with_memory, without, same = (
        _estimate(outcomes)
        for outcomes in (comparison.with_memory, comparison.without, comparison.without_same_iterations)
    )
    difference = None if with_memory is None or same is None else rate_difference(with_memory, same)
    return MemoryEffect(with_memory, without, same, difference)


def _estimate(outcomes: Outcomes) -> Estimate | None:
    return sampled_success_rate(outcomes.by_task) if outcomes.attempts else None
