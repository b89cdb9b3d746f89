"""Forgetting: an entry is removed from a memory; the record of it and the reason stay. A policy that has
learned its text may write it again; then it is a new entry.

A request is an artifact whose recipe holds the entries and the reason. It belongs to the iteration that had
begun when it was made, and takes effect in a memory version of its own, right after the iteration's version.
So nothing that a run has already made is made again, and all later artifacts are made without the entry. In
an iteration that merges its memory, a request that comes before the merge takes effect before it, so that the
merge does not read the entry; one that comes later takes effect after it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from storage.runs.documents import BranchOrigin, read_origin

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
    """Remove an entry from a run's memory; see `forget_all`."""
    return forget_all(store, run, [entry_id], reason)[0]


def forget_all(store: ArtifactStore, run: Run, entry_ids: Sequence[str], reason: str) -> list[Forgotten]:
    """Remove entries from a run's memory by one request, so in one memory version.

    A request that was recorded, and whose process was killed before its entries were removed, is fulfilled
    now.

    Raises InputError, and removes nothing, when the memory does not hold one of the entries or no reason is
    given; RunBusy while the run is being worked on.
    """
    if not reason.strip():
        raise InputError("give the reason, in a few words: it is recorded for later readers.")
    with run.lock():
        version = versions.latest_version(run)
        require_held(store, version, entry_ids)
        made = {each.iteration for each in versions.memory_versions(run)}
        request_of = _requests(store, run)
        for entry_id in entry_ids:
            asked = request_of.get(entry_id)
            if asked is not None and asked.iteration not in made:
                given = store.open(asked.artifact_id).manifest.settings
                raise InputError(
                    f"entry {entry_id} is forgotten already and leaves the memory after iteration "
                    f"{asked.iteration}: {given['reason']}"
                )
        new = [entry_id for entry_id in dict.fromkeys(entry_ids) if entry_id not in request_of]
        if new:
            request = _ask(store, run, versions.request_recipe(version, new, reason))
            request_of |= dict.fromkeys(new, request)
        asked_for = {request_of[each].artifact_id: request_of[each] for each in entry_ids}
        reasons = {each: str(store.open(each).manifest.settings["reason"]) for each in asked_for}
        removed_by = {
            artifact_id: _fulfil(store, run, request) if request.iteration in made else None
            for artifact_id, request in asked_for.items()
        }
    return [
        Forgotten(
            each,
            reasons[request.artifact_id],
            request.iteration or 0,
            request.artifact_id,
            removed_by[request.artifact_id],
        )
        for each in entry_ids
        for request in [request_of[each]]
    ]


def awaiting(store: ArtifactStore, run: Run) -> set[str]:
    """Entries of a run that are to be forgotten once the current iteration has its memory version."""
    made = {each.iteration for each in versions.memory_versions(run)}
    return {
        entry_id
        for iteration, requests in versions.forget_requests(run.recorded()).items()
        if iteration not in made
        for request in requests
        for entry_id in versions.requested_entries(store.open(request.artifact_id).manifest.settings)
    }


def _requests(store: ArtifactStore, run: Run) -> dict[str, LedgerEntry]:
    """The first request of a run's ledger to forget each entry."""
    found: dict[str, LedgerEntry] = {}
    for entry in run.stages():
        if entry.kind == "request":
            manifest = store.find(entry.artifact_id, entry.stage)
            if manifest is not None:
                for entry_id in versions.requested_entries(manifest.settings):
                    found.setdefault(entry_id, entry)
    return found


def _ask(store: ArtifactStore, run: Run, recipe: Recipe) -> LedgerEntry:
    """Commit and record a request; it belongs to the iteration that has begun."""
    stages = run.stages()
    begun = max((entry.iteration or 0 for entry in stages), default=0)
    origin = read_origin(store.uri, run.name)
    if isinstance(origin, BranchOrigin):
        begun = max(begun, origin.iteration)  # What comes before is another run's.
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
    iteration = request.iteration or 0
    # A plan numbers the requests of an iteration; the keys of requests count those of the whole run.
    ids = [each.artifact_id for each in versions.forget_requests(run.recorded())[iteration]]
    place = ids.index(request.artifact_id)
    _record(run, iteration, removal, f"{place:04d}")
    return removal.artifact_id


def _record(run: Run, iteration: int, recipe: Recipe, key: str) -> LedgerEntry:
    return run.record(
        iteration, recipe.stage, recipe.artifact_id, kind=recipe.kind, key=key, reused=False, seconds=0.0
    )


def write_forgotten(store: ArtifactStore, folder: Path, parent: str, request: Manifest, version: str) -> int:
    """Write the files of the memory version that fulfils a request; returns how many entries it removes.

    An entry that is gone for another reason is not removed. `parent` is the version before.
    """
    reason = str(request.settings["reason"])
    states = _states(store, parent, versions.requested_entries(request.settings))
    removals = [
        Operation("remove", entry_id, request.iteration or 0, version, reason="forgotten", detail=reason)
        for entry_id, state in states.items()
        if state == "held"
    ]
    return write_operations(folder / OPERATIONS_FILE, removals)


def require_held(store: ArtifactStore, version: str, entry_ids: Sequence[str]) -> None:
    """Raise InputError, which says why, if a memory version does not hold one of these entries."""
    for entry_id, state in _states(store, version, entry_ids).items():
        if state == "unknown":
            raise InputError(
                f"the memory never held an entry {entry_id}; `memory list` shows those that it holds."
            )
        if isinstance(state, Operation):
            detail = f" ({state.detail})" if state.detail else ""
            raise InputError(f"entry {entry_id} is not in the memory any more: {state.reason}{detail}.")


def _states(store: ArtifactStore, version: str, entry_ids: Sequence[str]) -> dict[str, Operation | str]:
    """For each entry `held`, `unknown`, or the operation that removed it."""
    _, deltas = read_chain(store, version)
    named = pl.col("entry_id").is_in(pl.Series(entry_ids, dtype=pl.String).implode())
    known = set(scan_entries(deltas).filter(named).select("entry_id").collect()["entry_id"])
    return {
        entry_id: removal_of(deltas, entry_id) or ("held" if entry_id in known else "unknown")
        for entry_id in entry_ids
    }
