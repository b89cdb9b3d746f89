"""The result of a run in a few figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from erl_pipeline.evaluation.history import CurvePoint, StageRecord
from erl_pipeline.plan.column import Column, Headline
from erl_pipeline.statistics import PairedDifference
from erl_pipeline.views.report.charts import short_number


@dataclass(frozen=True)
class HeldOutResult:
    """Held-out success before training and now, as text. `end` is empty until the second evaluation."""

    start: str
    end: str
    details: Sequence[str]


@dataclass(frozen=True)
class Tile:
    """A figure with its label and a detail on how it was obtained."""

    label: str
    value: str
    detail: str


def summary_line(settings: Mapping[str, Any], history: Sequence[StageRecord], done: int) -> str:
    """One line on what kind of run it is and how far it is; `done` iterations are complete."""
    target = max(done, settings["iterations"])
    parts = [
        str(settings["method"]["type"]).upper(),
        f"environment {settings['environment']['type']}",
        f"{settings['policy']['type']} policy",
        f"seed {settings['seed']}",
        f"{done} of {target} iteration{'' if target == 1 else 's'}",
    ]
    if history:
        latest = max(record.manifest.finished_at for record in history)
        parts.append(f"last artifact {latest:%Y-%m-%d %H:%M} UTC")
    return " · ".join(parts)


def held_out_result(curve: Sequence[CurvePoint], difference: PairedDifference | None) -> HeldOutResult | None:
    """The ends of the learning curve; None without an evaluation. `difference` compares the ends task by
    task; it is None with one evaluation."""
    if not curve:
        return None
    first, last = curve[0], curve[-1]
    if difference is None:
        interval = f"95 % interval {_range(first)} (Wilson), iteration {first.iteration}."
        return HeldOutResult(percent(first.success), "", [interval])
    details = [
        f"{difference.tasks} tasks that training never saw, one greedy first attempt each, without memory "
        f"or reflection. 95 % intervals: {_range(first)} before, {_range(last)} after iteration "
        f"{last.iteration}.",
        f"Task by task {100 * difference.difference:+.1f} points (95 % interval {100 * difference.low:+.1f} "
        f"to {100 * difference.high:+.1f}); tasks gained: {difference.gained}, lost: {difference.lost}; "
        f"{_p_value(difference.p_value)} (exact McNemar test).",
        "Both intervals are about these tasks and this run; they say nothing about other seeds.",
    ]
    return HeldOutResult(percent(first.success), percent(last.success), details)


def held_out_tile(curve: Sequence[CurvePoint]) -> Tile | None:
    """Held-out success at the start and now; None without an evaluation."""
    if not curve:
        return None
    first, last = curve[0], curve[-1]
    interval = f"95 % interval {_range(last)}"
    if first is last:
        return Tile("Held-out success", percent(last.success), f"iteration {last.iteration}, {interval}")
    return Tile(
        "Held-out success",
        f"{percent(first.success)} → {percent(last.success)}",
        f"iteration {first.iteration} and {last.iteration}; {interval}",
    )


def tiles(history: Sequence[StageRecord], columns: Sequence[Column]) -> list[Tile]:
    """The figures that the method's columns ask for, if the run has them, and the training time."""
    found = []
    for column in columns:
        if column.headline is not None:
            points = [(record, value) for record in history if (value := record.value(column)) is not None]
            if points:
                found.append(_tile(column, column.headline, points))
    if history:
        start = sum(
            record.seconds for record in history if record.kind == "checkpoint" and not record.iteration
        )
        evaluation = sum(record.seconds for record in history if record.kind == "evaluation")
        rest = sum(record.seconds for record in history) - start - evaluation
        detail = f"before the first iteration {duration(start)}, evaluation {duration(evaluation)}"
        found.append(Tile("Training time", duration(rest), detail))
    return found


def _tile(column: Column, headline: Headline, points: Sequence[tuple[StageRecord, float]]) -> Tile:
    write = percent if column.share else short_number
    (first, start), (last, end) = points[0], points[-1]
    if headline.over == "change":
        between = f"iteration {first.iteration} and {last.iteration}"
        return Tile(headline.label, f"{write(start)} → {write(end)}", f"{headline.detail}, {between}")
    names = {name for _, name, _, _ in Formatter().parse(headline.detail) if name}
    totals = {name: f"{sum(record.number(name) or 0 for record, _ in points):,.0f}" for name in names}
    value = sum(value for _, value in points) if headline.over == "total" else end
    return Tile(headline.label, write(value), headline.detail.format(**totals))


def written(column: Column, value: float) -> str:
    """A value as the tables of reports show it."""
    return percent(value) if column.share else column.text(value)


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
