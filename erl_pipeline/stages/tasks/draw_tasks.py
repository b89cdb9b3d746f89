"""How each iteration draws from the training tasks of a run, where their selection is uniform."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erl_pipeline.environments.interface import Task, part_name
from storage.artifacts.artifact import Artifact
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError

if TYPE_CHECKING:
    from storage.tables.parquet import TableFormat

_NO_WEIGHTS: Mapping[str, float] = {}


def draw_tasks(
    tasks: Sequence[Task],
    count: int,
    run_seed: int,
    iteration: int,
    weights: Mapping[str, float] = _NO_WEIGHTS,
) -> list[Task]:
    """The `count` different tasks of an iteration (from 1).

    A seeded order of all tasks is cut into iterations; when less than a whole iteration is left, the next
    order begins, so that no task comes twice in one iteration. In a mixture each part has an order of its
    own, and `part_counts` of its tasks are drawn. Raises `InputError` when there are fewer tasks than
    `count`, or fewer of a part than it needs. `weights`: weights of a mixture's parts; empty where the tasks
    are of one environment.
    """
    return task_order(tasks, count, run_seed, iteration, weights)[:count]


def task_order(
    tasks: Sequence[Task],
    count: int,
    run_seed: int,
    iteration: int,
    weights: Mapping[str, float] = _NO_WEIGHTS,
) -> list[Task]:
    """All tasks in an order that begins with the `count` tasks of an iteration; then come those of later
    iterations, and last those that were drawn before. Arguments and errors are those of `draw_tasks`."""
    if not weights:
        return _order(tasks, count, iteration, "", run_seed)
    counts = part_counts(weights, count, run_seed, iteration)
    drawn: dict[str, list[Task]] = {}
    others: list[Task] = []
    for name, of_part in tasks_by_part(tasks, weights).items():
        # A part reserves the same number of tasks in each iteration, so that its place in its order does not
        # depend on how many were drawn before.
        room = math.ceil(round(count * weights[name] / sum(weights.values()), 9))
        order = _order(of_part, room, iteration, name, run_seed)
        drawn[name] = order[: counts[name]]
        others += order[counts[name] :]
    return [*interleaved(drawn), *others]


def part_counts(weights: Mapping[str, float], count: int, run_seed: int, iteration: int) -> dict[str, int]:
    """How many of an iteration's `count` tasks each part of a mixture gives.

    Its share, count x weight / sum of weights, is rounded down or up by the seed, so that it is met on
    average over iterations: with u uniform in [0, 1) and S_i the sum of the first i shares, part i gives
    floor(S_i + u) - floor(S_(i-1) + u) (systematic sampling).
    """
    chance = random.Random(derive_seed(run_seed, "part counts", iteration)).random()
    total, below, given = sum(weights.values()), 0.0, 0
    counts = {}
    for name, weight in weights.items():
        below += weight
        # Rounded, since sums of shares that should be whole may be a little less.
        upto = math.floor(round(count * below / total, 9) + chance)
        counts[name], given = upto - given, upto
    return counts


def tasks_by_part(tasks: Sequence[Task], weights: Mapping[str, float]) -> dict[str, list[Task]]:
    """The tasks of each part of a mixture; without a mixture all of them, under an empty name."""
    if not weights:
        return {"": list(tasks)}
    found: dict[str, list[Task]] = {name: [] for name in weights}
    for task in tasks:
        found[part_name(task.task_id)].append(task)
    return found


def interleaved(of_parts: Mapping[str, Sequence[Task]]) -> list[Task]:
    """The tasks of several parts in one list that holds them in proportion wherever it is cut."""
    placed = [
        ((number + 0.5) / len(tasks), place, task)
        for place, tasks in enumerate(of_parts.values())
        for number, task in enumerate(tasks)
    ]
    return [task for _, _, task in sorted(placed, key=lambda each: each[:2])]


def require_enough(tasks: Sequence[Task], count: int, part: str) -> None:
    """Raise `InputError` where an iteration asks for more different tasks than there are."""
    if count <= len(tasks):
        return
    if not part:
        raise InputError(
            f"rollouts.tasks_per_iteration: {count} tasks are asked for, but there are {len(tasks)} training "
            "tasks; ask for fewer, or give more"
        )
    raise InputError(
        f"environment.parts.{part}: its weight asks for {count} tasks in an iteration, but it has "
        f"{len(tasks)} training tasks; lower its weight or rollouts.tasks_per_iteration, or give more"
    )


def _order(tasks: Sequence[Task], count: int, iteration: int, part: str, run_seed: int) -> list[Task]:
    require_enough(tasks, count, part)
    epoch, place = divmod(iteration - 1, len(tasks) // count)
    order = list(tasks)
    seed = derive_seed(run_seed, "task order", *([part] if part else []), epoch)
    random.Random(seed).shuffle(order)
    return order[place * count :] + order[: place * count]


SAMPLES = "samples"
"""Name of the input through which a shard gets the table."""

SAMPLES_FILE = "samples.parquet"

TaskSamples = tuple[Task, int]
"""A task, and the number of episodes of it."""


def write_samples(path: Path, samples: Sequence[TaskSamples]) -> int:
    """Write the tasks of an iteration in their order; returns the number of tasks."""
    from storage.tables.parquet import write_rows

    rows = ({"task_id": task.task_id, "samples": count} for task, count in samples)
    return write_rows(path, rows, _table())


def planned_samples(artifact: Artifact, tasks: Sequence[Task]) -> list[TaskSamples]:
    """The tasks of an iteration in their order. Raises InputError for one that is not among `tasks`."""
    from storage.tables.parquet import read_rows

    known = {task.task_id: task for task in tasks}
    found = []
    for row in read_rows([artifact.path(SAMPLES_FILE)], _table()):
        if row["task_id"] not in known:
            raise InputError(
                f"artifact {artifact.manifest.artifact_id} ({artifact.manifest.stage}) plans episodes of "
                f"task {row['task_id']}, which is no training task of this run"
            )
        found.append((known[row["task_id"]], row["samples"]))
    return found


def _table() -> TableFormat:
    # Planning does not import pyarrow.
    import pyarrow as pa

    from storage.tables.parquet import TableFormat

    schema = pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # a task of the iteration
            pa.field("samples", pa.int32(), nullable=False),  # episodes of it
        ]
    )
    return TableFormat(name="sample_counts", version=1, schema=schema)
