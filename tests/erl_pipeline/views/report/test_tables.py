from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.evaluation.history import read_history
from erl_pipeline.evaluation.iterations import IterationRow, history_rows
from erl_pipeline.plan.column import Column
from erl_pipeline.views.report.tables import (
    evaluation_table,
    iteration_table,
    stage_table,
    version_rows,
)

COLUMNS = (
    Column("roll", "success", "1st", "success of attempts"),
    Column("learn", "loss", "RL loss", "loss of the update", "+.4f"),
    Column("roll", "tokens", "tokens", "tokens generated", ",d"),
    Column("learn", "entropy", "entropy", "drawn alone", in_tables=False),
)


def test_each_iteration_is_a_row_of_what_it_gave(erl_run: Any) -> None:
    columns = erl_run.description.columns
    table = iteration_table(
        history_rows(read_history(erl_run.store, erl_run.run), columns), columns, titles=True
    )
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


def test_cells_are_written_for_people_and_columns_without_any_value_left_out() -> None:
    rows = [
        IterationRow(0, {"learn/entropy": 1.0}),
        IterationRow(1, {"learn/loss": 0.5, "roll/tokens": 12345.0, "learn/entropy": 1.0}, 1234.56),
    ]
    table = iteration_table(rows, COLUMNS)
    assert table.cells == [
        {"iter": "0", "RL loss": "", "tokens": "", "seconds": "0.0"},
        {"iter": "1", "RL loss": "+0.5000", "tokens": "12,345", "seconds": "1,234.6"},
    ]
    assert table.legend == "RL loss: loss of the update; tokens: tokens generated"


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


def test_versions_name_code_machine_and_packages(rlvr_run: Any) -> None:
    names = [name for name, _ in version_rows(read_history(rlvr_run.store, rlvr_run.run))]
    assert names[0] == "code"
    assert {"python", "platform", "torch"} <= set(names)
