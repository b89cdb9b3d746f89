"""The memory versions of a run, in the order in which they followed each other, from its ledger."""

from __future__ import annotations

from dataclasses import dataclass

from storage.memory.chain import EMPTY_MEMORY
from storage.runs.run import Run

INDEX_STAGE = "index_memory"
"""Adds an iteration's reflections."""

REQUEST_STAGE = "forget_request"
"""Asks that an entry be forgotten, and says why."""

FORGET_STAGE = "forget_memory"
"""Removes the entry that a request names."""


@dataclass(frozen=True)
class MemoryVersion:
    """A memory version and the iteration after which it was the run's memory."""

    iteration: int
    stage: str
    artifact_id: str


def memory_versions(run: Run) -> list[MemoryVersion]:
    """All memory versions of a run, the oldest first."""
    stages = (INDEX_STAGE, FORGET_STAGE)
    found = [entry for entry in run.stages() if entry.stage in stages]
    found.sort(key=lambda entry: (entry.iteration or 0, stages.index(entry.stage), entry.key))
    return [MemoryVersion(entry.iteration or 0, entry.stage, entry.artifact_id) for entry in found]


def latest_version(run: Run, iteration: int | None = None) -> str:
    """The newest memory version, or the newest after an iteration; `empty` before the first."""
    versions = memory_versions(run)
    ids = [each.artifact_id for each in versions if iteration is None or each.iteration <= iteration]
    return ids[-1] if ids else EMPTY_MEMORY


def forget_requests(run: Run) -> dict[int, list[str]]:
    """Iteration -> the requests to be fulfilled after it, as artifact ids, in order."""
    requests: dict[int, list[tuple[str, str]]] = {}
    for entry in run.stages():
        if entry.stage == REQUEST_STAGE:
            requests.setdefault(entry.iteration or 0, []).append((entry.key, entry.artifact_id))
    return {iteration: [artifact_id for _, artifact_id in sorted(of)] for iteration, of in requests.items()}
