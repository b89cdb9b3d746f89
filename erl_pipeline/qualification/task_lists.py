"""Comparing the tasks of splits and of processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from erl_pipeline.qualification.served_environment import Split, TaskSign


def first_difference(
    tasks: Sequence[TaskSign], again: Sequence[TaskSign], split: Split, when: str
) -> str | None:
    """A sentence on the first task of a split that is different when made again; None if all are the same.

    `when` says in the sentence how the tasks were made again.
    """
    for number, (one, other) in enumerate(zip(tasks, again, strict=False), start=1):
        if one != other:
            what = f"is {other.task_id}" if one.task_id != other.task_id else "is another problem"
            return f"{split} task {number}, {one.task_id}, {what} {when}"
    if len(tasks) != len(again):
        return f"there are {len(tasks)} {split} tasks, and {len(again)} {when}"
    return None


def find_overlap(splits: Mapping[Split, Sequence[TaskSign]]) -> str | None:
    """A sentence on the first problem in two splits, by the environment's `task_key`; None without any."""
    for (name, tasks), (other_name, others) in combinations(splits.items(), 2):
        known = {task.key: task.task_id for task in tasks}
        for task in others:
            if task.key in known:
                return f"{other_name} task {task.task_id} is the {name} task {known[task.key]}"
    return None
