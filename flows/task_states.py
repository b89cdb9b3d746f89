"""The stages of a run as Prefect sees them: task runs and their states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

RUNNING, COMPLETED, FAILED, CANCELLED = "RUNNING", "COMPLETED", "FAILED", "CANCELLED"
"""States of Prefect's runs."""


@dataclass(frozen=True)
class TaskRun:
    """A stage that is computed, as a task run of Prefect.

    `parents`: name of an input -> the task run of this flow run that made it.
    """

    name: str
    stage: str
    iteration: int | None
    started: datetime
    parents: Mapping[str, UUID]
    id: UUID = field(default_factory=uuid4)


@dataclass(frozen=True)
class TaskState:
    """A state of a task run: one of those above."""

    task_run: TaskRun
    type: str
    at: datetime
    message: str


@dataclass(frozen=True)
class Work:
    """What one flow run has done so far."""

    computed: Mapping[str, int]
    reused: int
    seconds: float
