"""Where a trainer's ranks run: no artifact depends on it, and workers are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.plan.execution import Execution
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.stage import WorkerSettings
from erl_pipeline.runs import driver
from tests.erl_pipeline.runs.planned_runs import config, ids, plan
from tests.erl_pipeline.runs.small_runs import Notes

FOUR = "trainer={type: fsdp2, processes: 4}"
ON_TWO = ("trainer.nodes=2", "trainer.address=10.0.0.1:29500")


def test_nodes_change_no_id_and_processes_do() -> None:
    for more in ((), ("replay=on",)):
        assert ids(plan(FOUR, *more, *ON_TWO)) == ids(plan(FOUR, *more))
        assert ids(plan(FOUR, *more, "trainer.processes=2")) != ids(plan(FOUR, *more))


def test_workers_are_told_where_ranks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[WorkerSettings]()

    def execute(_plan: Plan, execution: Execution) -> None:
        told.append(execution.worker)

    monkeypatch.setattr("erl_pipeline.runs.driver.execute", execute)
    settings, notes = config("runner={type: in_process}", FOUR, *ON_TWO), Notes()
    with driver.open_run(settings, str(tmp_path), notes, notes.stop) as opened:
        driver.execute_run(opened, Plan((), ()), frozenset())
    (worker,) = told
    assert worker.trainer == {
        "nodes": 2,
        "address": "10.0.0.1:29500",
        "start_seconds": 120,
        "timeout_seconds": 1800.0,
        "sleep": False,
    }
