"""The result of a run in a few figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erl_pipeline.evaluation.history import EVALUATIONS, CurvePoint, StageRecord, of_stage
from erl_pipeline.evaluation.statistics import PairedDifference
from erl_pipeline.views.report.charts import short_number


@dataclass(frozen=True)
class Verdict:
    """Held-out success before training and now, as text. `end` is empty until the second evaluation."""

    start: str
    end: str
    details: Sequence[str]


@dataclass(frozen=True)
class Tile:
    """One more figure with what it is and how it came about."""

    label: str
    value: str
    detail: str


def summary_line(settings: Mapping[str, Any], history: Sequence[StageRecord]) -> str:
    """What kind of run it is and how far it has come."""
    done = max((record.iteration for record in of_stage(history, "update_policy")), default=0)
    parts = [
        str(settings["method"]).upper(),
        f"environment {settings['environment']['type']}",
        f"{settings['policy']['type']} policy",
        f"seed {settings['seed']}",
        f"{done} of {max(done, settings['iterations'])} iterations",
    ]
    if history:
        latest = max(record.manifest.finished_at for record in history)
        parts.append(f"last artifact {latest:%Y-%m-%d %H:%M} UTC")
    return " · ".join(parts)


def verdict(curve: Sequence[CurvePoint], difference: PairedDifference | None) -> Verdict | None:
    """The ends of the learning curve. `difference` compares them task by task; None with one evaluation."""
    if not curve:
        return None
    first, last = curve[0], curve[-1]
    if difference is None:
        interval = f"95 % interval {_range(first)} (Wilson), iteration {first.iteration}."
        return Verdict(percent(first.success), "", [interval])
    details = [
        f"{difference.tasks} tasks that training never saw, one greedy first attempt each, without memory "
        f"or reflection. 95 % intervals: {_range(first)} before, {_range(last)} after iteration "
        f"{last.iteration}.",
        f"Task by task {100 * difference.difference:+.1f} points (95 % interval {100 * difference.low:+.1f} "
        f"to {100 * difference.high:+.1f}); tasks gained: {difference.gained}, lost: {difference.lost}; "
        f"{_p_value(difference.p_value)} (exact McNemar test).",
        "Both intervals are about these tasks and this run; they say nothing about other seeds.",
    ]
    return Verdict(percent(first.success), percent(last.success), details)


def tiles(history: Sequence[StageRecord]) -> list[Tile]:
    """Retries, rollouts, memory, distillation and time, each where the run has it."""
    rollouts = of_stage(history, "generate_rollouts")
    found = []
    retries = [record for record in rollouts if record.number("success_second") is not None]
    if retries:
        first, last = retries[0], retries[-1]
        found.append(
            Tile(
                "Retries that succeed",
                f"{percent(first.required_number('success_second'))} → "
                f"{percent(last.required_number('success_second'))}",
                f"second attempts, iteration {first.iteration} and {last.iteration}",
            )
        )
    if rollouts:
        tokens, episodes = _total(rollouts, "generated_tokens"), _total(rollouts, "episodes")
        found.append(Tile("Generated tokens", short_number(tokens), f"in {episodes:,.0f} training episodes"))
    memory = of_stage(history, "index_memory")
    if memory:
        entries = f"{memory[-1].required_number('entries'):,.0f}"
        found.append(Tile("Memory", entries, "reflections that led to success"))
    datasets = of_stage(history, "build_distillation")
    if datasets:
        rows = f"{_total(datasets, 'sft_rows'):,.0f}"
        found.append(Tile("Distilled", rows, "successes trained on without help"))
    if history:
        start = sum(record.seconds for record in of_stage(history, "bootstrap"))
        evaluation = sum(record.seconds for record in history if record.stage in EVALUATIONS)
        rest = sum(record.seconds for record in history) - start - evaluation
        detail = f"cold start {duration(start)}, evaluation {duration(evaluation)}"
        found.append(Tile("Training time", duration(rest), detail))
    return found


def percent(share: float) -> str:
    """`0.5` as `50 %`."""
    return f"{100 * share:.0f} %"


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _range(point: CurvePoint) -> str:
    return f"{100 * point.low:.0f} to {100 * point.high:.0f} %"


def _p_value(value: float) -> str:
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


def _total(records: Sequence[StageRecord], name: str) -> float:
    return sum(record.number(name) or 0.0 for record in records)
