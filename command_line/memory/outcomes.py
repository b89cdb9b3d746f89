"""The outcomes of attempts with memory and without it, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from erl_pipeline.evaluation.memory_effect import Arm, MemoryEffect
    from erl_pipeline.statistics import MeanEstimate


def effect_lines(effect: MemoryEffect) -> list[str]:
    """Lines that say whether memory helps: both subgroups, and their difference within groups."""
    if effect.guided is None:
        return ["no attempt followed a search of the memory"]
    lines = [_line("attempts after a reflection that could see memory", effect.guided)]
    if effect.free is None:
        return [
            *lines,
            "memory was withheld from none (method.memory.withhold), so there is nothing to compare with",
        ]
    lines.append(_line("attempts after a reflection without memory", effect.free))
    if effect.effect is None:
        return [*lines, "no group has both, so there is nothing to compare with"]
    return [
        *lines,
        f"effect of memory on reward: {interval(effect.effect)}, {effect.effect.count} compared with their "
        f"groups, of {effect.effect.tasks} tasks; the seed drew which reflections see memory, so the effect "
        "is causal",
    ]


def credit_line(credit: MeanEstimate | None) -> str:
    """A line about an entry's credit: what the attempts that saw it gained."""
    if credit is None:
        return "credit: nothing to compare with, for no group has some that saw it and some without memory"
    return (
        f"credit: {interval(credit)}; {credit.count} that saw it were compared with those of their groups "
        f"from whom memory was withheld, at {credit.tasks} tasks, and shrunk to 0"
    )


def interval(estimate: MeanEstimate | None) -> str:
    """An estimate with its interval, such as `+0.120 (-0.020 to +0.260)`."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:+.3f} (one task: no interval)"
    return f"{estimate.value:+.3f} ({estimate.low:+.3f} to {estimate.high:+.3f})"


def _line(what: str, arm: Arm) -> str:
    rate = arm.success
    successes = round(rate.value * rate.attempts)
    gain = "" if arm.gain is None else f"; over other first attempts at the same tasks {interval(arm.gain)}"
    return (
        f"{what}: {successes} of {rate.attempts} succeeded, {rate.value:.3f} "
        f"({rate.low:.3f} to {rate.high:.3f}){gain}"
    )
