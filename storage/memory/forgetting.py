"""Forgetting: an entry is removed from a memory; the record of it and the reason stay. A policy that has
learned its text may write it again; then it is a new entry.

A request is an artifact whose recipe holds the entry and the reason. It belongs to the iteration that had
begun when it was made, and takes effect in a memory version of its own, right after the iteration's version.
So nothing that a run has already made is made again, and all later artifacts are made without the entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory import versions
from storage.memory.chain import OPERATIONS_FILE, read_chain, removal_of, scan_entries
from storage.memory.operations import Operation, write_operations

if TYPE_CHECKING:
    from storage.runs.ledger import LedgerEntry
    from storage.runs.run import Run


@dataclass(frozen=True)
class Forgotten:
    """A request to forget an entry, and where it takes effect.

    `memory_version` no longer holds the entry. It is None if the current `iteration` has no memory version
    yet: then the request takes effect after `iteration`.
    """

    entry_id: str
    reason: str
    iteration: int
    request_id: str
    memory_version: str | None


def forget(store: ArtifactStore, run: Run, entry_id: str, reason: str) -> Forgotten:
    """Remove an entry from a run's memory.

    A request that was recorded, and whose process was killed before the entry was removed, is fulfilled now.

    Raises InputError when the memory does not hold the entry or no reason is given, RunBusy while the run
    is being worked on.
    """
    if not reason.strip():
        raise InputError("give the reason, in a few words: it is recorded for later readers.")
    with run.lock():
        version = versions.latest_version(run)
        require_held(store, version, entry_id)
        request = _request_for(store, run, entry_id)
        asked_before = request is not None
        if request is None:
            request = _ask(store, run, versions.request_recipe(version, entry_id, reason))
        given = store.open(request.artifact_id).manifest.settings
        removed_by = None
        if any(each.iteration == request.iteration for each in versions.memory_versions(run)):
            removed_by = _fulfil(store, run, request)
        elif asked_before:
            raise InputError(
                f"entry {entry_id} is forgotten already and leaves the memory after iteration "
                f"{request.iteration}: {given['reason']}"
            )
    return Forgotten(entry_id, str(given["reason"]), request.iteration or 0, request.artifact_id, removed_by)


def awaiting(store: ArtifactStore, run: Run) -> set[str]:
    """Entries of a run that are to be forgotten once the current iteration has its memory version."""
    made = {each.iteration for each in versions.memory_versions(run)}
    return {
        str(store.open(artifact_id).manifest.settings["entry_id"])
        for iteration, requests in versions.forget_requests(run.recorded()).items()
        if iteration not in made
        for artifact_id in requests
    }


def _request_for(store: ArtifactStore, run: Run, entry_id: str) -> LedgerEntry | None:
    """The request of a run's ledger to forget an entry."""
    for entry in run.stages():
        if entry.kind == "request":
            manifest = store.find(entry.artifact_id, entry.stage)
            if manifest is not None and manifest.settings["entry_id"] == entry_id:
                return entry
    return None


def _ask(store: ArtifactStore, run: Run, recipe: Recipe) -> LedgerEntry:
    """Commit and record a request; it belongs to the iteration that has begun."""
    stages = run.stages()
    begun = max((entry.iteration or 0 for entry in stages), default=0)
    with store.create(recipe, run=run.name, iteration=begun) as staging:
        staging.commit(memory_version=recipe.inputs[versions.PARENT_INPUT])
    return _record(run, begun, recipe, f"{sum(entry.kind == 'request' for entry in stages):04d}")


def _fulfil(store: ArtifactStore, run: Run, request: LedgerEntry) -> str:
    """Commit and record the memory version that no longer holds the entry; returns its id."""
    version = versions.latest_version(run)
    removal = versions.forget_recipe(version, request.artifact_id)
    with store.create(removal, run=run.name, iteration=request.iteration) as staging:
        asked = store.open(request.artifact_id).manifest
        removed = write_forgotten(store, staging.path, version, asked, removal.artifact_id)
        staging.commit(counters={"entries_forgotten": removed}, memory_version=removal.artifact_id)
    _record(run, request.iteration or 0, removal, request.key)
    return removal.artifact_id


def _record(run: Run, iteration: int, recipe: Recipe, key: str) -> LedgerEntry:
    return run.record(
        iteration, recipe.stage, recipe.artifact_id, kind=recipe.kind, key=key, reused=False, seconds=0.0
    )


def write_forgotten(store: ArtifactStore, folder: Path, parent: str, request: Manifest, version: str) -> int:
    """Write the files of the memory version that fulfils a request; returns how many entries it removes.

    It removes none if the entry is gone for another reason. `parent` is the version before.
    """
    entry_id, reason = str(request.settings["entry_id"]), str(request.settings["reason"])
    state = _state(store, parent, entry_id)
    removal = Operation(
        "remove", entry_id, request.iteration or 0, version, reason="forgotten", detail=reason
    )
    return write_operations(folder / OPERATIONS_FILE, [removal] if state == "held" else [])


def require_held(store: ArtifactStore, version: str, entry_id: str) -> None:
    """Raise InputError, which says why, if a memory version does not hold an entry."""
    state = _state(store, version, entry_id)
    if state == "unknown":
        raise InputError(
            f"the memory never held an entry {entry_id}; `memory list` shows those that it holds."
        )
    if isinstance(state, Operation):
        detail = f" ({state.detail})" if state.detail else ""
        raise InputError(f"entry {entry_id} is not in the memory any more: {state.reason}{detail}.")


def _state(store: ArtifactStore, version: str, entry_id: str) -> Operation | str:
    """`held`, `unknown`, or the operation that removed the entry."""
    _, deltas = read_chain(store, version)
    gone = removal_of(deltas, entry_id)
    if gone is not None:
        return gone
    known = scan_entries(deltas).filter(pl.col("entry_id") == entry_id).select("entry_id").collect()
    return "held" if known.height else "unknown"
