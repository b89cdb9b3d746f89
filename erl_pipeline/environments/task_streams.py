"""What an environment offers for streamed evaluation: tasks in realms that training never shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Task


@dataclass(frozen=True)
class TaskStreams:
    """Held-out realms: kinds of tasks that no training task has, each with one lesson for all its tasks.

    The first argument of each function is the environment's settings.
    """

    realms: Callable[[Any], Sequence[str]]
    """The names of the held-out realms, each the `task_type` of its tasks; none with settings that have
    none."""
    tasks: Callable[[Any, int, int, int], Mapping[str, Sequence[Task]]]
    """Arguments: the run's seed, how many realms, how many tasks of each. The first realms, in order, with
    tasks that are all different, and that no training task equals."""
    lesson: Callable[[Any, Task], str]
    """All that is hidden in a task's realm, as a perfect reflection would say it."""
