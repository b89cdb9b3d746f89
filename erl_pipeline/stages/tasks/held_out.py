"""Keeping held-out tasks out of training, however tasks arrive."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from storage.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_COLUMNS = ("trajectory_id", "task_id", "environment", "task_payload")


def refuse_held_out(
    training: Iterable[Task], held_out: Iterable[Task], plugin: EnvironmentPlugin[Any]
) -> None:
    """Raise InputError, naming both, where a training task is the same problem as a held-out one."""
    kept = _by_key(held_out, plugin)
    for task in training:
        same = kept.get(_key(task.environment, task.payload, plugin)) if task.payload else None
        if same is not None:
            raise InputError(
                f"training task {task.task_id} is the held-out task {same}: a policy would be evaluated on "
                "what it was trained on; take it out of the training tasks"
            )


def refuse_held_out_rows(
    rows: pl.LazyFrame, held_out: Sequence[Task], plugin: EnvironmentPlugin[Any], source: str
) -> None:
    """Raise InputError, naming the row, where a trajectory is of a held-out task.

    Args:
        rows: trajectories; those of other environments than the held-out tasks' are ignored.
        source: where they are from, for the message, such as `run x, iteration 3`.
    """
    kept = _by_key(held_out, plugin)
    ours = {task.environment for task in held_out}
    found = rows.select(_COLUMNS).with_row_index("row", offset=1).collect()
    # The trajectories of a task have one payload.
    for number, trajectory_id, task_id, environment, payload in found.unique(
        ["environment", "task_payload"], keep="first", maintain_order=True
    ).iter_rows():
        same = kept.get(_key(environment, _object(payload), plugin)) if environment in ours else None
        if same is not None:
            raise InputError(
                f"{source}, row {number} (trajectory {trajectory_id}, task {task_id}) is of the held-out "
                f"task {same}: a policy would be evaluated on what it was trained on; leave its rows out, or "
                "hold other tasks out"
            )


def _by_key(tasks: Iterable[Task], plugin: EnvironmentPlugin[Any]) -> Mapping[str, str]:
    """Key -> id of the tasks; an empty payload does not say what the problem is, so such tasks are left
    out."""
    return {_key(task.environment, task.payload, plugin): task.task_id for task in tasks if task.payload}


def _key(environment: str, payload: Mapping[str, Any], plugin: EnvironmentPlugin[Any]) -> str:
    """A key that is equal for tasks that are the same problem. With a mixture it holds the task's own
    environment, so that the same problem is found in every part, and in rows made without a mixture."""
    if plugin.is_mixture:
        return f"{environment} {plugins('environments')[environment].value.task_key(payload)}"
    return plugin.task_key(payload)


def _object(payload: str) -> Mapping[str, Any]:
    """A payload from a row; empty where it is not a JSON object, and so equals no task."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
