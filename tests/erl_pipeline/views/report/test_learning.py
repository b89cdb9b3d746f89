from __future__ import annotations

from typing import Any

from erl_pipeline.evaluation.history import read_history
from erl_pipeline.views.report.curves import held_out_charts, role_rewards, training_charts
from storage.tables.trajectories import scan_trajectories, write_trajectories


def test_held_out_success_is_drawn_with_its_interval(erl_run: Any) -> None:
    (chart,) = held_out_charts(read_history(erl_run.store, erl_run.run), erl_run.description.columns)
    (greedy,) = chart.series
    assert (greedy.x, greedy.y) == ([0, 1, 2], [0.5, 1.0, 1.0])
    assert (greedy.low, greedy.high) == ([0.25, 0.5, 0.5], [0.75, 1.0, 1.0])


def test_there_is_no_held_out_chart_before_the_first_evaluation(new_run: Any) -> None:
    assert held_out_charts(read_history(new_run.store, new_run.run), new_run.description.columns) == []


def test_charts_without_data_are_left_out(erl_run: Any, rlvr_run: Any) -> None:
    history = read_history(erl_run.store, erl_run.run)
    erl = [chart.title for chart in training_charts(history, erl_run.description.columns, {})]
    assert erl == [
        "Success in training",
        "Retries that succeed",
        "Memory",
        "Policy-gradient loss",
        "Distilled examples",
        "Entropy",
        "Gradient norm",
        "Supervised loss",
    ]
    rlvr = training_charts(read_history(rlvr_run.store, rlvr_run.run), rlvr_run.description.columns, {})
    assert [chart.title for chart in rlvr] == [
        "Success in training",
        "Policy-gradient loss",
        "Entropy",
        "Gradient norm",
    ]
    assert [series.label for series in rlvr[0].series] == ["first attempt"]


def test_an_update_without_a_step_has_no_loss(new_run: Any) -> None:
    new_run.begin()
    new_run.commit("update_policy", 1, counters={"optimizer_steps": 0}, metrics={"policy_loss": 0.0})
    assert training_charts(read_history(new_run.store, new_run.run), new_run.description.columns, {}) == []


def test_groups_without_advantage_have_a_line_for_each_role(new_run: Any) -> None:
    new_run.begin()
    counters = {
        "groups_first_attempt": 8,
        "zero_advantage_groups_first_attempt": 8,
        "groups_reflection": 3,
        "zero_advantage_groups_reflection": 1,
    }
    new_run.commit("update_policy", 1, counters={"optimizer_steps": 0, **counters})
    (chart,) = training_charts(read_history(new_run.store, new_run.run), new_run.description.columns, {})
    assert chart.title == "Groups without advantage"
    assert [(line.label, line.y) for line in chart.series] == [("first attempt", [8]), ("reflection", [1])]


def test_rewards_are_averaged_by_role_and_iteration(
    make_attempt: Any, make_retried: Any, tmp_path: Any
) -> None:
    rows = [
        *make_retried("lake-1", 0, True, 1),
        make_attempt("lake-2", 0, "first_attempt", True, 1),
        make_attempt("lake-2", 0, "first_attempt", True, 2),
    ]
    write_trajectories(tmp_path / "rows.parquet", rows)
    rewards = role_rewards(
        scan_trajectories([tmp_path / "rows.parquet"]), ["first_attempt", "reflection", "second_attempt"]
    )
    assert (rewards["first_attempt"].x, rewards["first_attempt"].y) == ([1, 2], [0.5, 1.0])
    assert (rewards["reflection"].x, rewards["reflection"].y) == ([1], [1.0])
    assert list(rewards) == ["first_attempt", "reflection", "second_attempt"]
