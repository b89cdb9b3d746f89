"""The memory versions of a run, in the order in which they were made, from its ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import InputError
from storage.memory.chain import EMPTY_MEMORY

if TYPE_CHECKING:
    from storage.runs.run import Run


@dataclass(frozen=True)
class MemoryVersion:
    """A memory version and the iteration after which it was the run's memory."""

    iteration: int
    stage: str
    artifact_id: str


def memory_versions(run: Run) -> list[MemoryVersion]:
    """All memory versions of a run, the oldest first."""
    found = [entry for entry in run.stages() if entry.kind == "memory"]
    # The sort is stable: within an iteration the ledger lists them in the order in which they were made.
    found.sort(key=lambda entry: entry.iteration or 0)
    return [MemoryVersion(entry.iteration or 0, entry.stage, entry.artifact_id) for entry in found]


def latest_version(run: Run, iteration: int | None = None) -> str:
    """The newest memory version, or the newest one at the end of an iteration; `empty` before the first.

    Raises InputError for an iteration that the run does not have.
    """
    versions = memory_versions(run)
    if iteration:
        last = max((entry.iteration or 0 for entry in run.stages()), default=0)
        if iteration > last:
            raise InputError(f"run {run.name} has no iteration {iteration}; its last one is {last}.")
    ids = [each.artifact_id for each in versions if iteration is None or each.iteration <= iteration]
    return ids[-1] if ids else EMPTY_MEMORY
