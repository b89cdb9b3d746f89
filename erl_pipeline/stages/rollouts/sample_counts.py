"""How often each task of an iteration is played, where data decide that: a table in an artifact.

A stage before the rollouts writes it, such as one that chooses what is replayed. Recipes of the shards then
hold the id of its artifact, and never the tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from erl_pipeline.environments.interface import Task
from storage.artifacts.artifact import Artifact
from storage.errors import InputError

if TYPE_CHECKING:
    from storage.tables.parquet import TableFormat

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
