"""The charts of a run: what was learned, from what, and how steadily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from erl_pipeline.evaluation.history import StageRecord, learning_curve, of_stage
from erl_pipeline.views.report.charts import Chart, Series

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
    evaluations = of_stage(history, "evaluate")
    greedy = Series(
        "greedy first attempt",
        [point.iteration for point in curve],
        [point.success for point in curve],
        [point.low for point in curve],
        [point.high for point in curve],
    )
    others = [
        _numbers("sampled first attempt", evaluations, "sampled_success"),
        _numbers("with a reflection", evaluations, "success_with_reflection"),
    ]
    series = [greedy, *(one for one in others if one.x)]
    note = "Band: 95 % Wilson interval of the greedy first attempt"
    return Chart("Held-out success", "iteration", "success", series, (0.0, 1.0), note)


def training_charts(history: Sequence[StageRecord], rewards: Mapping[str, Series]) -> list[Chart]:
    """Everything else that changes from iteration to iteration; charts without data are left out.

    `rewards` are the mean rewards by role, from `role_rewards`.
    """
    charts = [
        *_rollout_charts(history),
        Chart("Mean reward by role", "iteration", "reward", list(rewards.values())),
        *_update_charts(history),
    ]
    return [drawn for drawn in map(_with_data, charts) if drawn is not None]


def role_rewards(rollouts: pl.LazyFrame) -> dict[str, Series]:
    """Mean reward of each role by iteration."""
    reward = pl.col("reward").cast(pl.Float64).mean()
    means = rollouts.group_by("role", "iteration").agg(reward).sort("iteration").collect()
    return {
        role: Series(name, rows["iteration"].to_list(), rows["reward"].to_list())
        for role, name in ROLE_NAMES.items()
        if not (rows := means.filter(pl.col("role") == role)).is_empty()
    }


def _rollout_charts(history: Sequence[StageRecord]) -> list[Chart]:
    rollouts = of_stage(history, "generate_rollouts")
    memory = of_stage(history, "index_memory")
    datasets = of_stage(history, "build_distillation")
    success = [_numbers("first attempt", rollouts, "success_first")]
    if any(record.number("second_attempts") for record in rollouts):
        success.append(_numbers("first or second attempt", rollouts, "success_episode"))
    retries = [_numbers("second attempt", rollouts, "success_second")]
    after_failure = "Second attempts are made only after a failure"
    return [
        Chart(
            "Success in training", "iteration", "success", success, (0.0, 1.0), "Share of sampled episodes"
        ),
        Chart("Retries that succeed", "iteration", "success", retries, (0.0, 1.0), after_failure),
        Chart("Memory", "iteration", "entries", [_numbers("entries", memory, "entries")]),
        Chart("Distilled examples", "iteration", "examples", [_numbers("examples", datasets, "sft_rows")]),
    ]


def _update_charts(history: Sequence[StageRecord]) -> list[Chart]:
    """Updates that made no step (all advantages 0, no examples) are left out: they have no loss."""
    update = [record for record in of_stage(history, "update_policy") if record.number("optimizer_steps")]
    tuning = [record for record in of_stage(history, "fine_tune") if record.number("optimizer_steps")]
    reference = [record for record in update if record.number("kl_loss")]
    mismatch = [
        _numbers("mean", update, "mismatch_mean"),
        _numbers("largest", update, "mismatch_max"),
    ]
    gradients = [
        _numbers("reinforcement", update, "grad_norm"),
        _numbers("supervised", tuning, "grad_norm"),
    ]
    supervised = [
        _numbers("first step", tuning, "first_loss"),
        _numbers("last step", tuning, "last_loss"),
    ]
    kl = [_numbers("KL", reference, "kl_loss")]
    before_step = "Difference of log-probabilities before the first step"
    return [
        Chart("Policy-gradient loss", "iteration", "loss", [_numbers("policy", update, "policy_loss")]),
        Chart("Supervised loss", "iteration", "nats a token", supervised),
        Chart("KL to the reference", "iteration", "nats a token", kl),
        Chart("Entropy", "iteration", "nats a token", [_numbers("entropy", update, "entropy")]),
        Chart("Gradient norm", "iteration", "norm", gradients, note="Before clipping"),
        Chart("Clipped tokens", "iteration", "share", [_numbers("clipped", update, "clip_fraction")]),
        Chart("Trainer against sampler", "iteration", "nats", mismatch, note=before_step),
    ]


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
