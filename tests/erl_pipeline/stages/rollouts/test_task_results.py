from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.config.rollouts import ResultSettings
from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.rollouts.task_results import (
    TaskResult,
    expected_success,
    first_attempts,
    read_results,
    with_iteration,
    write_results,
)


def task(name: str, type_: str = "lake") -> Task:
    return Task(name, type_, "environment", {})


def test_first_attempts_are_counted_but_those_that_the_environment_ended() -> None:
    rows = [
        ("t1", None, "done", True),
        ("t1", None, "done", False),
        ("t1", "first", "done", True),  # a second attempt
        ("t2", None, "environment_error", False),
        ("t3", None, "context", False),
    ]
    columns = ["task_id", "parent_trajectory_id", "finish_reason", "success"]
    frame = pl.DataFrame(rows, schema=columns, orient="row").lazy()
    assert first_attempts(frame) == {"t1": (2, 1), "t3": (1, 0)}


def test_each_iteration_discounts_those_before_it() -> None:
    first = with_iteration({}, 1, {"t1": (4, 4), "t2": (4, 0)}, 0.5)
    second = with_iteration(first, 2, {"t1": (4, 1)}, 0.5)
    assert second == {"t1": TaskResult(6.0, 3.0, 2), "t2": TaskResult(2.0, 0.0, 1)}


def test_expected_success_by_hand() -> None:
    results = {"t1": TaskResult(4.0, 4.0, 1), "t2": TaskResult(4.0, 0.0, 1)}
    tasks = [task("t1"), task("t2"), task("t3"), task("other", "pond")]
    expected = expected_success(tasks, results, ResultSettings(prior=0.2, prior_tries=2.0))
    # The type: (4 + 0.2 * 2) / (8 + 2) = 0.44; t1: (4 + 0.44 * 2) / 6, t2: 0.88 / 6; t3 is like its type.
    assert expected["t1"] == pytest.approx(4.88 / 6)
    assert expected["t2"] == pytest.approx(0.88 / 6)
    assert expected["t3"] == pytest.approx(0.44)
    # Nothing is known about its type.
    assert expected["other"] == pytest.approx(0.2)


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = {"t2": TaskResult(4.0, 0.9, 3), "t1": TaskResult(1.5, 0.25, 1)}
    assert write_results(tmp_path / "results.parquet", results) == 2
    assert read_results(tmp_path / "results.parquet") == results
