"""The figures and tables of a run: its result, iterations, evaluations, cost by stage, artifacts,
versions."""

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from erl_pipeline.evaluation.history import CurvePoint, StageRecord, held_out_evaluations, of_stage
from erl_pipeline.evaluation.iterations import IterationRow
from erl_pipeline.plan.column import Column, Headline
from erl_pipeline.stages.evaluation.evaluate import EVALUATE, EVALUATE_ON_REQUEST
from erl_pipeline.statistics import PairedDifference
from erl_pipeline.views.report.charts import short_number
from erl_pipeline.views.report.texts import percent, seconds_text


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
        detail = f"before the first iteration {seconds_text(start)}, evaluation {seconds_text(evaluation)}"
        found.append(Tile("Training time", seconds_text(rest), detail))
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


def _range(point: CurvePoint) -> str:
    return f"{100 * point.low:.0f} to {100 * point.high:.0f} %"


def _p_value(value: float) -> str:
    return "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"


MOST_ROWS = 50
"""The most rows of a table that is shown again with each new iteration."""
_LEGEND_WIDTH = 100


@dataclass(frozen=True)
class Table:
    """Cells as text. The first column names the row. `shares`, in [0, 1], give each row a bar; `legend` says
    what the columns mean."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    shares: Sequence[float] = ()
    legend: str = ""

    @property
    def cells(self) -> list[dict[str, str]]:
        """The rows, each by the names of the columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def iteration_table(
    rows: Sequence[IterationRow], columns: Sequence[Column], *, titles: bool = False
) -> Table:
    """A run iteration by iteration, as the terminal, the report, the page and Prefect's page show it. Columns
    that no iteration has are left out.

    Args:
        titles: with the columns' titles, and shares in percent, as reports have them; else with short labels.
    """
    shown = [
        column for column in columns if column.in_tables and any(column.name in row.values for row in rows)
    ]
    cells = []
    for row in rows:
        values = [(column, row.values.get(column.name)) for column in shown]
        write = written if titles else Column.text
        numbers = ["" if value is None else write(column, value) for column, value in values]
        cells.append([str(row.iteration), *numbers, f"{row.seconds:,.1f}"])
    names = [(column.title if titles else "") or column.label for column in shown]
    return Table(["iteration" if titles else "iter", *names, "seconds"], cells, legend=legend(shown))


def legend(columns: Sequence[Column]) -> str:
    """The lines below a table that say what its columns mean."""
    meanings = [f"{column.label}: {column.meaning}" for column in columns if column.in_tables]
    return textwrap.fill("; ".join(meanings), _LEGEND_WIDTH, break_on_hyphens=False)


def evaluation_table(history: Sequence[StageRecord], columns: Sequence[Column]) -> Table:
    """The first and the last evaluation on the held-out tasks, and the evaluations on request on other tasks.

    Rates are given with their 95 % intervals; columns that no evaluation has are left out.
    """
    held_out = held_out_evaluations(history)
    named = [("held-out tasks", record) for record in held_out[:1] + held_out[1:][-1:]]
    named += [
        (f"on request, {record.manifest.artifact_id[:12]}", record)
        for record in of_stage(history, EVALUATE_ON_REQUEST.name)
    ]
    # Evaluations on request report the same numbers.
    rates = [column for column in columns if column.stage == EVALUATE.name and column.interval]
    shown = [
        column for column in rates if any(record.number(column.metric) is not None for _, record in named)
    ]
    rows = [
        [tasks, str(record.iteration), *(_with_interval(record, column.metric) for column in shown)]
        for tasks, record in named
    ]
    return Table(["tasks", "after iteration", *map(_line, shown)], rows)


def stage_table(history: Sequence[StageRecord]) -> Table:
    """The total cost of each stage, in the order in which the stages first ran."""
    by_stage: defaultdict[str, list[StageRecord]] = defaultdict(list)
    for record in history:
        by_stage[record.stage].append(record)
    total = sum(record.seconds for record in history)
    rows, shares = [], []
    for stage, records in by_stage.items():
        seconds = sum(record.seconds for record in records)
        tokens = sum(_tokens(record) for record in records)
        rows.append(
            [
                stage,
                str(len(records)),
                str(sum(record.reused for record in records)),
                seconds_text(seconds),
                f"{seconds / len(records):.2f} s",
                short_number(tokens) if tokens else "",
                f"{tokens / seconds:,.0f}" if tokens and seconds else "",
            ]
        )
        shares.append(seconds / total if total else 0.0)
    columns = ["stage", "artifacts", "reused", "time", "each", "tokens", "tokens/s"]
    return Table(columns, rows, shares)


def version_rows(history: Sequence[StageRecord]) -> list[tuple[str, str]]:
    """Code, machine and packages as manifests record them; several values where artifacts differ."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for record in history:
        manifest = record.manifest
        found["code"].add(manifest.code_version)
        for name, value in [*manifest.environment.items(), *manifest.packages.items()]:
            found[name].add(str(value))
    return [(name, ", ".join(sorted(values))) for name, values in found.items()]


def _line(column: Column) -> str:
    """The name of a column in charts."""
    return column.title or column.label if column.drawn is None else column.drawn.line


def _with_interval(record: StageRecord, name: str) -> str:
    rate = record.number(name)
    if rate is None:
        return ""
    low, high = record.required_number(f"{name}_low"), record.required_number(f"{name}_high")
    return f"{percent(rate)} ({100 * low:.0f} to {100 * high:.0f})"


def _tokens(record: StageRecord) -> float:
    """Tokens that a stage generated or trained on; 0 for rollouts, whose shards already count theirs."""
    if record.kind == "rollouts":
        return 0.0
    return record.number("generated_tokens") or record.number("trained_tokens") or 0.0
