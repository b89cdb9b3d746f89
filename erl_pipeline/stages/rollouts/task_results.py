"""What is known of each task from the first attempts of earlier iterations: a table that is passed on from
selection to selection, so that no stage reads the whole history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from erl_pipeline.config.rollouts import ResultSettings
from erl_pipeline.environments.interface import Task
from storage.tables.scored import was_scored

if TYPE_CHECKING:
    import polars as pl

    from storage.tables.parquet import TableFormat

RESULTS_FILE = "results.parquet"


@dataclass(frozen=True)
class TaskResult:
    """First attempts at a task, and those of them that succeeded; earlier ones are discounted."""

    tries: float
    successes: float
    last_iteration: int


Results = Mapping[str, TaskResult]
"""Task id -> what is known of it."""


def first_attempts(rollouts: pl.LazyFrame) -> dict[str, tuple[int, int]]:
    """Task -> first attempts at it, and those that succeeded. Attempts that were not scored say nothing about
    the task, and do not count.

    Args:
        rollouts: trajectories of one iteration. A first attempt is one without a parent.
    """
    import polars as pl

    counted = (
        rollouts.filter(pl.col("parent_trajectory_id").is_null(), was_scored())
        .group_by("task_id")
        .agg(tries=pl.len(), successes=pl.col("success").sum())
        .sort("task_id")
        .collect()
    )
    return {task_id: (tries, successes) for task_id, tries, successes in counted.iter_rows()}


def with_iteration(
    results: Results, iteration: int, attempts: Mapping[str, tuple[int, int]], discount: float
) -> dict[str, TaskResult]:
    """What is known after one more iteration: all earlier numbers times `discount`, plus its own."""
    later = {
        task_id: TaskResult(known.tries * discount, known.successes * discount, known.last_iteration)
        for task_id, known in results.items()
    }
    for task_id, (tries, successes) in attempts.items():
        known = later.get(task_id, TaskResult(0.0, 0.0, iteration))
        later[task_id] = TaskResult(known.tries + tries, known.successes + successes, iteration)
    return later


def expected_success(tasks: Sequence[Task], results: Results, settings: ResultSettings) -> dict[str, float]:
    """Task -> expected success of a first attempt at it.

    A type of tasks with S successes in N tries is expected to have m = (S + prior * p) / (N + p). A task of
    this type with s successes in n tries is expected to have (s + m * p) / (n + p). Here p is `prior_tries`.
    """
    weight = settings.prior_tries
    totals: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for task in tasks:
        if task.task_id in results:
            total = totals[task.task_type]
            total[0] += results[task.task_id].successes
            total[1] += results[task.task_id].tries
    expected = {}
    for task in tasks:
        successes, tries = totals[task.task_type]
        of_type = (successes + settings.prior * weight) / (tries + weight)
        own = results.get(task.task_id, TaskResult(0.0, 0.0, 0))
        expected[task.task_id] = (own.successes + of_type * weight) / (own.tries + weight)
    return expected


def write_results(path: Path, results: Results) -> int:
    """Write what is known, by task; returns the number of tasks."""
    from storage.tables.parquet import write_rows

    rows: Iterable[Mapping[str, object]] = (
        {
            "task_id": task_id,
            "tries": known.tries,
            "successes": known.successes,
            "last_iteration": known.last_iteration,
        }
        for task_id, known in sorted(results.items())
    )
    return write_rows(path, rows, _table())


def read_results(path: Path) -> dict[str, TaskResult]:
    """What `write_results` wrote."""
    from storage.tables.parquet import read_rows

    return {
        row["task_id"]: TaskResult(row["tries"], row["successes"], row["last_iteration"])
        for row in read_rows([path], _table())
    }


def _table() -> TableFormat:
    # Planning does not import pyarrow.
    import pyarrow as pa

    from storage.tables.parquet import TableFormat

    schema = pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # a task that was tried
            pa.field("tries", pa.float64(), nullable=False),  # first attempts, earlier ones discounted
            pa.field("successes", pa.float64(), nullable=False),  # of these
            pa.field("last_iteration", pa.int32(), nullable=False),  # of these
        ]
    )
    return TableFormat(name="task_results", version=1, schema=schema)
