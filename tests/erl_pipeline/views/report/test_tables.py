from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.evaluation.history import read_history
from erl_pipeline.views.report.tables import (
    artifact_rows,
    evaluation_table,
    iteration_table,
    stage_table,
    version_rows,
)


def test_each_iteration_is_a_row_of_what_it_gave(erl_run: Any) -> None:
    table = iteration_table(read_history(erl_run.store, erl_run.run), erl_run.description.columns)
    assert table.columns == [
        "iteration",
        "first attempts",
        "second attempts",
        "retried",
        "memory",
        "RL loss",
        "distilled",
        "held-out success",
        "generated tokens",
        "tokens/s",
        "seconds",
    ]
    assert [row[:-2] for row in table.rows] == [
        ["0", "", "", "", "", "", "", "50 %", ""],
        ["1", "33 %", "50 %", "2", "1", "-0.1000", "1", "100 %", "100"],
        ["2", "33 %", "50 %", "2", "2", "-0.2000", "1", "100 %", "100"],
    ]


def test_columns_that_a_method_does_not_have_are_left_out(rlvr_run: Any) -> None:
    table = iteration_table(read_history(rlvr_run.store, rlvr_run.run), rlvr_run.description.columns)
    assert "second attempts" not in table.columns
    assert "memory" not in table.columns


def test_stages_share_the_time_and_count_a_shard_once(erl_run: Any) -> None:
    table = stage_table(read_history(erl_run.store, erl_run.run))
    by_stage = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert sum(table.shares) == pytest.approx(1.0)
    assert by_stage["rollout_shard"]["tokens"] == "200"
    assert by_stage["generate_rollouts"]["tokens"] == ""
    assert by_stage["evaluate"]["artifacts"] == "3"


def test_evaluations_are_the_first_the_last_and_those_on_request(erl_run: Any) -> None:
    requested = erl_run.commit(
        "evaluate_on_request",
        2,
        metrics={
            "greedy_success": 0.5,
            "greedy_success_low": 0.25,
            "greedy_success_high": 0.75,
            "sampled_success": 0.4,
            "sampled_success_low": 0.3,
            "sampled_success_high": 0.5,
        },
    )
    table = evaluation_table(read_history(erl_run.store, erl_run.run), erl_run.description.columns)
    assert table.columns == ["tasks", "after iteration", "greedy first attempt", "sampled first attempt"]
    assert table.rows == [
        ["held-out tasks", "0", "50 % (25 to 75)", ""],
        ["held-out tasks", "2", "100 % (50 to 100)", ""],
        [f"on request, {requested[:12]}", "2", "50 % (25 to 75)", "40 % (30 to 50)"],
    ]


def test_artifacts_name_what_they_were_made_from(rlvr_run: Any) -> None:
    rows = {row.stage: row for row in artifact_rows(read_history(rlvr_run.store, rlvr_run.run))}
    update = rows["update_policy"]
    assert [(link.name, link.artifact_id) for link in update.inputs] == [
        ("checkpoint", rows["bootstrap"].artifact_id),
        ("rollouts", rows["generate_rollouts"].artifact_id),
    ]
    assert all(link.listed for link in update.inputs)


def test_versions_name_code_machine_and_packages(rlvr_run: Any) -> None:
    names = [name for name, _ in version_rows(read_history(rlvr_run.store, rlvr_run.run))]
    assert names[0] == "code"
    assert {"python", "platform", "torch"} <= set(names)
