"""How attempts went with memory and without it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.evaluation.memory_effect import MemoryEffect
    from erl_pipeline.statistics import Estimate


def effect_lines(effect: MemoryEffect, what: str, others: str) -> list[str]:
    """What a comparison shows; `what` was seen or not, such as `this entry`; `others` says what it is
    against."""
    if effect.with_memory is None:
        return [f"no attempt followed a prompt that held {what}"]
    lines = [_line(f"attempts after a prompt that held {what}", effect.with_memory)]
    if effect.without is None:
        return [*lines, f"there is no comparison: there are no {others}"]
    lines.append(_line(others, effect.without))
    if effect.without_same_iterations is None or effect.difference is None:
        return [
            *lines,
            "there is no fair comparison: those others are from other iterations, hence of other policies",
        ]
    difference = effect.difference
    lines.append(_line("of these in the same iterations", effect.without_same_iterations))
    lines.append(
        f"difference in the same iterations: {difference.value:+.3f} ({difference.low:+.3f} to "
        f"{difference.high:+.3f}); who sees memory is not drawn by lot, so this is a hint and no proof"
    )
    return lines


def _line(what: str, estimate: Estimate) -> str:
    successes = round(estimate.value * estimate.attempts)
    return (
        f"{what}: {successes} of {estimate.attempts} succeeded, {estimate.value:.3f} "
        f"({estimate.low:.3f} to {estimate.high:.3f})"
    )
