"""The charts of a run: what was learned, from what, and how steadily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.plan.column import Column
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from erl_pipeline.views.report.charts import Chart, Series
from storage.tables.scored import was_scored

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
    reward = pl.col("reward").cast(pl.Float64).mean()
    means = (
        rollouts.filter(was_scored()).group_by("role", "iteration").agg(reward).sort("iteration").collect()
    )
    return {
        role: Series(role.replace("_", " "), rows["iteration"].to_list(), rows["reward"].to_list())
        for role in roles
        if not (rows := means.filter(pl.col("role") == role)).is_empty()
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
