"""The curves of one or several runs, laid over each other: what was learned, from what, and how steadily."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import polars as pl

from erl_pipeline.evaluation.history import StageRecord, mean_rewards
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.plan.column import Column
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from erl_pipeline.views.report.charts import Chart, Series

_REWARDS_AFTER = 1
"""How many charts come before the chart of the rewards."""


def held_out_charts(history: Sequence[StageRecord], columns: Sequence[Column]) -> list[Chart]:
    """The charts of evaluations on held-out tasks; none before the first evaluation."""
    return _charts(history, [column for column in columns if column.stage == EVALUATE.name])


def training_charts(
    history: Sequence[StageRecord], columns: Sequence[Column], rewards: Mapping[str, Series]
) -> list[Chart]:
    """The charts of all other numbers that change from iteration to iteration; charts without data are left
    out.

    `rewards` are the mean rewards by role, from `role_rewards`.
    """
    charts = _charts(history, [column for column in columns if column.stage != EVALUATE.name])
    if rewards:
        mean = Chart("Mean reward by role", "iteration", "reward", list(rewards.values()))
        charts.insert(_REWARDS_AFTER, mean)
    return charts


def role_rewards(rollouts: pl.LazyFrame, roles: Sequence[str]) -> dict[str, Series]:
    """Mean reward of each role by iteration, in the order in which the method declares the roles.
    Trajectories that were not scored are left out."""
    found = mean_rewards(rollouts)
    return {
        role: Series(role.replace("_", " "), list(found[role]), list(found[role].values()))
        for role in roles
        if role in found
    }


def _charts(history: Sequence[StageRecord], columns: Sequence[Column]) -> list[Chart]:
    """A chart for each title, in the order of the columns, with the lines that have values."""
    by_stage: dict[str, list[StageRecord]] = {}
    for record in history:
        by_stage.setdefault(record.stage, []).append(record)
    lines: dict[str, list[tuple[Column, Series]]] = {}
    for column in columns:
        series = _series(by_stage.get(column.stage, ()), column)
        if column.drawn is not None and series.x:
            band = column.interval and column.drawn.chart not in lines
            shown = series if band else Series(series.label, series.x, series.y)
            lines.setdefault(column.drawn.chart, []).append((column, shown))
    charts = []
    for title, found in lines.items():
        drawn = [column.drawn for column, _ in found if column.drawn is not None]
        heights = (0.0, 1.0) if all(column.share for column, _ in found) else None
        note = next((line.note for line in drawn if line.note), "")
        charts.append(
            Chart(title, "iteration", drawn[0].unit, [series for _, series in found], heights, note)
        )
    return charts


def _series(history: Sequence[StageRecord], column: Column) -> Series:
    """A column by iteration, for the iterations that report it, with its interval if it has one."""
    points = [(record, value) for record in history if (value := record.value(column)) is not None]

    def interval(end: str) -> list[float] | None:
        if not column.interval:
            return None
        return [record.required_number(f"{column.metric}_{end}") for record, _ in points]

    label = column.label if column.drawn is None else column.drawn.line
    iterations, values = [record.iteration for record, _ in points], [value for _, value in points]
    return Series(label, iterations, values, interval("low"), interval("high"))


Axis = Literal["iteration", "tokens", "seconds"]
AXES: dict[Axis, str] = {
    "iteration": "iteration",
    "tokens": "generated tokens",
    "seconds": "seconds of training",
}


@dataclass(frozen=True)
class ChartedRun:
    """A run whose numbers are drawn; `rewards` come from `role_rewards`, if they were read."""

    name: str
    history: Sequence[StageRecord]
    columns: Sequence[Column]
    rewards: Mapping[str, Series] = field(default_factory=dict)

    @cached_property
    def spent(self) -> dict[int, tuple[float, float]]:
        """Iteration -> generated tokens and seconds of training up to its end, without evaluations."""
        iterations = [row.iteration for row in history_rows(self.history, self.columns)]
        tokens, seconds = dict.fromkeys(iterations, 0.0), dict.fromkeys(iterations, 0.0)
        for record in self.history:
            if record.kind == "evaluation" or record.iteration not in tokens or record.iteration == 0:
                continue
            # Rollouts count the tokens of their shards again, but take no time themselves.
            if not record.is_part:
                tokens[record.iteration] += record.number("generated_tokens") or 0.0
            seconds[record.iteration] += record.seconds
        sums = zip(
            accumulate(tokens[i] for i in iterations), accumulate(seconds[i] for i in iterations), strict=True
        )
        return dict(zip(iterations, sums, strict=True))


def curves_as_numbers(runs: Sequence[ChartedRun], axis: Axis) -> dict[str, Any]:
    """The charts of runs in the form that the drawing script reads: those with the same title are one, in the
    order in which each title first occurs. `share`: its values lie in [0, 1]."""
    found: dict[str, dict[str, Any]] = {}
    for place, run in enumerate(runs):
        for chart in (
            *held_out_charts(run.history, run.columns),
            *training_charts(run.history, run.columns, run.rewards),
        ):
            shared = found.setdefault(
                chart.title,
                {
                    "title": chart.title,
                    "unit": chart.y_label,
                    "note": chart.note,
                    "share": chart.y_range == (0.0, 1.0),
                    "series": [],
                },
            )
            shared["series"] += [
                _line(run, chart, series, place, axis, alone=len(runs) == 1) for series in chart.series
            ]
    return {"x": AXES[axis], "charts": list(found.values())}


def _line(
    run: ChartedRun, chart: Chart, series: Series, place: int, axis: Axis, *, alone: bool
) -> dict[str, Any]:
    several = len(chart.series) > 1
    name = series.label if alone else f"{run.name}, {series.label}" if several else run.name
    line = chart.series.index(series)
    return {
        "label": name,
        "colour": (line if alone else place) % 6 + 1,
        "dashes": 0 if alone else line,
        "x": [_position(run, int(iteration), axis) for iteration in series.x],
        "y": list(series.y),
        "low": None if series.low is None else list(series.low),
        "high": None if series.high is None else list(series.high),
    }


def _position(run: ChartedRun, iteration: int, axis: Axis) -> float:
    if axis == "iteration":
        return iteration
    tokens, seconds = run.spent.get(iteration, (0.0, 0.0))
    return tokens if axis == "tokens" else seconds
