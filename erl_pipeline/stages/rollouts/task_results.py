"""What is known of each task from the first attempts of earlier iterations: a table that is passed on from
selection to selection, so that no stage reads the whole history."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.rollouts import ByDifficultySelection, EasyToHardSelection, ResultSettings
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
    the task, and do not count. `rollouts`: trajectories of one iteration. A first attempt is one without a
    parent."""
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


Reason = Literal["new", "expected_success", "window"]
"""`new`: never tried, and drawn uniformly among those; `expected_success`: drawn by weight among those that
were tried; `window`: in the window from easy to hard."""


@dataclass(frozen=True)
class DrawnTask:
    """A task of an iteration. `weight` is its weight in the draw, `probability` its chance in the first
    single draw among the same tasks."""

    task: Task
    weight: float
    probability: float
    reason: Reason


def draw_by_difficulty(
    tasks: Sequence[Task],
    count: int,
    expected: Mapping[str, float],
    results: Results,
    selection: ByDifficultySelection,
    chance: random.Random,
) -> list[DrawnTask]:
    """`count` different tasks: the share of new ones, rounded by chance, then tried ones by weight. Where one
    kind lacks tasks, the other fills in."""
    new = [task for task in tasks if task.task_id not in results]
    tried = [task for task in tasks if task.task_id in results]
    wanted = math.floor(selection.new * count + chance.random())
    of_new = max(min(wanted, len(new)), count - len(tried))
    logs = [_log_weight(expected[task.task_id], selection) for task in tried]
    return [
        *_drawn(new, [0.0] * len(new), of_new, "new", chance),
        *_drawn(tried, logs, count - of_new, "expected_success", chance),
    ]


def draw_from_window(
    tasks: Sequence[Task],
    count: int,
    difficulty: Mapping[str, float],
    selection: EasyToHardSelection,
    iteration: int,
    chance: random.Random,
) -> list[DrawnTask]:
    """`count` different tasks of the window of an iteration (from 1). The seed orders tasks that are equally
    hard."""
    shuffled = chance.sample(list(tasks), len(tasks))
    ordered = sorted(shuffled, key=lambda task: difficulty[task.task_id])
    first, last = window_of(len(tasks), count, selection, iteration)
    within = ordered[first:last]
    return _drawn(within, [0.0] * len(within), count, "window", chance)


def window_of(tasks: int, count: int, selection: EasyToHardSelection, iteration: int) -> tuple[int, int]:
    """Where the window lies in the order from easy to hard: its first index, and the one after its last. It
    moves in equal steps from the beginning, in iteration 1, to the end, in iteration `over`."""
    size = min(tasks, max(count, math.ceil(round(selection.window * tasks, 9))))
    steps = min(iteration - 1, selection.over - 1)
    first = (tasks - size) * steps // (selection.over - 1)
    return first, first + size


def _log_weight(expected: float, selection: ByDifficultySelection) -> float:
    """Logarithm of exp(-(expected - target)^2 / (2 width^2)), which is 1 at the target."""
    return -((expected - selection.target) ** 2) / (2 * selection.width**2)


def _drawn(
    tasks: Sequence[Task], logs: Sequence[float], count: int, reason: Reason, chance: random.Random
) -> list[DrawnTask]:
    """`count` tasks, drawn one after the other without replacement, each with a chance proportional to its
    weight w: those whose exponential clocks of rate w ring first (Efraimidis and Spirakis 2006). Computed in
    logarithms, since a weight may be too small for a float."""
    if not count:
        return []
    # The logarithm of -ln(u) / w; 1 - random() is in (0, 1].
    rings = [math.log(-math.log(1.0 - chance.random()) or 5e-324) - log for log in logs]
    largest = max(logs)
    total = sum(math.exp(log - largest) for log in logs)
    first = sorted(range(len(tasks)), key=lambda place: (rings[place], place))[:count]
    return [
        DrawnTask(tasks[place], math.exp(logs[place]), math.exp(logs[place] - largest) / total, reason)
        for place in first
    ]
