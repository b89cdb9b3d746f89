"""The curves of one or several runs, laid over each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from command_line.ui.stored import StoredRun
from erl_pipeline.views.report.charts import Chart, Series
from erl_pipeline.views.report.learning import held_out_charts, training_charts

Axis = Literal["iteration", "tokens", "seconds"]
AXES: dict[Axis, str] = {
    "iteration": "iteration",
    "tokens": "generated tokens",
    "seconds": "seconds of training",
}


@dataclass
class SharedChart:
    """A chart with the lines of all runs that have it."""

    title: str
    unit: str
    note: str
    share: bool
    """Whether its values lie in [0, 1]."""
    series: list[dict[str, Any]] = field(default_factory=list)


def shared_charts(runs: Sequence[StoredRun], axis: Axis) -> list[SharedChart]:
    """The charts of the runs by title, in the order in which the first run that has one shows it."""
    found: dict[str, SharedChart] = {}
    for place, run in enumerate(runs):
        for chart in (
            *held_out_charts(run.history, run.columns),
            *training_charts(run.history, run.columns, {}),
        ):
            shared = found.setdefault(
                chart.title,
                SharedChart(chart.title, chart.y_label, chart.note, share=chart.y_range == (0.0, 1.0)),
            )
            shared.series += [
                _line(run, chart, series, place, axis, alone=len(runs) == 1) for series in chart.series
            ]
    return list(found.values())


def _line(
    run: StoredRun, chart: Chart, series: Series, place: int, axis: Axis, *, alone: bool
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


def _position(run: StoredRun, iteration: int, axis: Axis) -> float:
    if axis == "iteration":
        return iteration
    tokens, seconds = run.spent.get(iteration, (0.0, 0.0))
    return tokens if axis == "tokens" else seconds


def code_differences(runs: Sequence[StoredRun]) -> list[tuple[str, list[str]]]:
    """What of the code is not the same in all runs: package or commit -> what each run has of it."""
    rows: list[dict[str, str]] = []
    for run in runs:
        found: dict[str, dict[str, None]] = {}
        for record in run.history:
            if record.on_request:
                continue
            found.setdefault("commit", {})[record.manifest.code_version[:19]] = None
            for package, fingerprint in record.manifest.code.items():
                found.setdefault(package, {})[fingerprint[:12]] = None
            found.setdefault(f"version of {record.stage}", {})[str(record.manifest.stage_version)] = None
        rows.append({name: ", ".join(values) for name, values in found.items()})
    names = dict.fromkeys(name for row in rows for name in row)
    # A stage or package that only one run has is a difference of settings, told of there.
    in_all = [name for name in names if all(name in row for row in rows)]
    return [(name, [row[name] for row in rows]) for name in in_all if len({row[name] for row in rows}) > 1]
