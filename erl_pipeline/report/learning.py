"""The charts of a run: what was learned, from what, and how steadily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from erl_pipeline.evaluation.history import StageRecord, learning_curve, of_stage
from erl_pipeline.report.charts import Chart, Series

ROLE_NAMES = {
    "first_attempt": "first attempt",
    "reflection": "reflection",
    "second_attempt": "second attempt",
}


def held_out_chart(history: Sequence[StageRecord]) -> Chart | None:
    """Greedy first-attempt success on held-out tasks; None before the first evaluation."""
    curve = learning_curve(history)
    if not curve:
        return None
    series = Series(
        "held-out success",
        [point.iteration for point in curve],
        [point.success for point in curve],
        [point.low for point in curve],
        [point.high for point in curve],
    )
    return Chart(
        "Held-out success", "iteration", "success", [series], (0.0, 1.0), "Band: 95 % Wilson interval"
    )


def training_charts(history: Sequence[StageRecord], rewards: Mapping[str, Series]) -> list[Chart]:
    """Everything else that changes from iteration to iteration; charts without data are left out.

    `rewards` are the mean rewards by role, from `role_rewards`.
    """
    rollouts = of_stage(history, "generate_rollouts")
    update = of_stage(history, "update_policy")
    tuning = of_stage(history, "fine_tune")
    charts = [
        Chart(
            "Success in training",
            "iteration",
            "success",
            [
                _numbers("first attempt", rollouts, "success_first"),
                _numbers("first or second attempt", rollouts, "success_episode")
                if any(record.number("second_attempts") for record in rollouts)
                else _numbers("", [], ""),
            ],
            (0.0, 1.0),
            "Share of episodes, sampled",
        ),
        Chart(
            "Retries that succeed",
            "iteration",
            "success",
            [_numbers("second attempt", rollouts, "success_second")],
            (0.0, 1.0),
            "Second attempts are made only after a failure",
        ),
        Chart("Mean reward by role", "iteration", "reward", list(rewards.values())),
        Chart(
            "Memory",
            "iteration",
            "entries",
            [_numbers("entries", of_stage(history, "index_memory"), "entries")],
        ),
        Chart(
            "Distilled examples",
            "iteration",
            "examples",
            [_numbers("rows", of_stage(history, "build_distillation"), "sft_rows")],
        ),
    ]
    return [drawn for drawn in map(_with_data, charts) if drawn is not None]


def role_rewards(rollouts: pl.LazyFrame) -> dict[str, Series]:
    """Mean reward of each role by iteration; reads two columns and the role."""
    means = (
        rollouts.group_by("role", "iteration")
        .agg(pl.col("reward").cast(pl.Float64).mean())
        .sort("iteration")
        .collect()
    )
    return {
        role: Series(name, rows["iteration"].to_list(), rows["reward"].to_list())
        for role, name in ROLE_NAMES.items()
        if not (rows := means.filter(pl.col("role") == role)).is_empty()
    }


def _numbers(label: str, records: Sequence[StageRecord], name: str) -> Series:
    """A counter or metric by iteration, where it was reported."""
    points = [(record.iteration, value) for record in records if (value := record.number(name)) is not None]
    return Series(label, [x for x, _ in points], [y for _, y in points])


def _with_data(chart: Chart) -> Chart | None:
    """The chart without its empty series; None when none is left."""
    series = [one for one in chart.series if one.x]
    if not series:
        return None
    return Chart(chart.title, chart.x_label, chart.y_label, series, chart.y_range, chart.note)
