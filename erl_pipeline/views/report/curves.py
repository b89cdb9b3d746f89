"""The curves of one or several runs, laid over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.plan.column import Column
from erl_pipeline.views.report.charts import Chart, Series
from erl_pipeline.views.report.learning import held_out_charts, training_charts

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


@dataclass
class SharedChart:
    """A chart with the lines of all runs that have it."""

    title: str
    unit: str
    note: str
    share: bool
    """Whether its values lie in [0, 1]."""
    series: list[dict[str, Any]] = field(default_factory=list)


def shared_charts(runs: Sequence[ChartedRun], axis: Axis) -> list[SharedChart]:
    """The charts of all runs, merged by title, in the order in which each title first occurs."""
    found: dict[str, SharedChart] = {}
    for place, run in enumerate(runs):
        for chart in (
            *held_out_charts(run.history, run.columns),
            *training_charts(run.history, run.columns, run.rewards),
        ):
            shared = found.setdefault(
                chart.title,
                SharedChart(chart.title, chart.y_label, chart.note, share=chart.y_range == (0.0, 1.0)),
            )
            shared.series += [
                _line(run, chart, series, place, axis, alone=len(runs) == 1) for series in chart.series
            ]
    return list(found.values())


def curves_as_numbers(runs: Sequence[ChartedRun], axis: Axis) -> dict[str, Any]:
    """The charts of runs, in the form that the drawing script reads."""
    return {"x": AXES[axis], "charts": [asdict(chart) for chart in shared_charts(runs, axis)]}


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
