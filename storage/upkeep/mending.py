"""Making a run's damaged records again, from what is whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from storage.artifacts.store import ArtifactStore
from storage.memory.requests import REQUEST_STAGE
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore


def mend_run(store: ArtifactStore, name: str, config: Mapping[str, Any]) -> list[str]:
    """Write a run's damaged `run.json` again with these settings, and its damaged ledger from its whole lines
    and the stored requests to forget. Returns what was wrong, one sentence for each fault.

    Artifacts whose lines are lost are still in the store: whoever executes the plan finds them.

    Raises RunBusy while the run is being worked on.
    """
    runs = RunStore(store.uri)
    if name not in runs.list():
        return []
    found = [runs.mend_settings(name, config)]
    run = runs.open(name)
    with run.lock():
        found.append(run.mend_ledger(lambda entries: lost_requests(store, run, entries)))
    return [problem for problem in found if problem]


def lost_requests(store: ArtifactStore, run: Run, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Lines for the requests to forget an entry of a run's memory that are stored, but not in `entries`."""
    known = {entry.artifact_id for entry in entries}
    count = sum(1 for entry in entries if entry.kind == "request")
    lost = [
        manifest
        for manifest in store.list(REQUEST_STAGE)
        # A request of an earlier run with this name was made about another memory.
        if manifest.run == run.name
        and manifest.artifact_id not in known
        and set(manifest.inputs.values()) <= known
    ]
    return [
        LedgerEntry(
            iteration=manifest.iteration,
            stage=manifest.stage,
            kind="request",
            key=f"{count + number:04d}",
            artifact_id=manifest.artifact_id,
            reused=True,
            seconds=0.0,
            recorded_at=datetime.now(UTC),
        )
        for number, manifest in enumerate(sorted(lost, key=lambda manifest: manifest.started_at))
    ]
