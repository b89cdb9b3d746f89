"""What Ray says when a process or a node is gone."""

from __future__ import annotations

from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    WorkerCrashedError,
)

DEATHS = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when a worker's process or node is gone, or cannot be reached."""


def reason(error: RayError) -> str:
    """The line of Ray's message that gives the reason, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "because" in line] or lines or [type(error).__name__]
    return told[0].partition(". ")[0].rstrip(".")
