"""Which policies a memory entry has reached, in all runs of a store."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MEMORY, MemoryEntry, scan_deltas
from storage.memory.history import FORGET_STAGE, INDEX_STAGE, REQUEST_STAGE
from storage.memory.use import ROLLOUT_STAGE
from storage.tables.trajectories import TRAJECTORIES, scan_trajectories

_MEMORY_STAGES = (INDEX_STAGE, FORGET_STAGE, REQUEST_STAGE)
_MODEL = "model/"


@dataclass(frozen=True)
class Policy:
    """A checkpoint."""

    artifact_id: str
    stage: str
    run: str
    iteration: int | None


@dataclass(frozen=True)
class Reach:
    """How far an entry has come. A policy stands in the first list that it belongs to."""

    trained_with_it: Sequence[Policy]
    """Trained on trajectories of rollouts in which a prompt held the entry."""
    trained_on_its_source: Sequence[Policy]
    """Trained on the rollouts that the entry is from, with the reflection itself."""
    descendants: Sequence[Policy]
    """Trained from one of those policies later, or on what it generated."""
    derived_entries: Sequence[str]
    """Entries whose reflection was written with it in the prompt."""


def reach(store: ArtifactStore, entry: MemoryEntry) -> Reach:
    """Follow an entry to every policy of the store; each file that is read is verified first."""
    manifests = {manifest.artifact_id: manifest for manifest in store.list()}
    children: dict[str, list[Manifest]] = {}
    for manifest in manifests.values():
        for input_id in manifest.inputs.values():
            children.setdefault(input_id, []).append(manifest)
    shards = [manifest for manifest in manifests.values() if manifest.stage == ROLLOUT_STAGE]
    shown = _with_rows(
        store,
        [shard for shard in shards if "memory" in shard.inputs],
        TRAJECTORIES.name,
        pl.col("memory_entry_ids").list.contains(entry.entry_id),
    )
    brought = manifests.get(entry.memory_version)
    rollouts = manifests.get(brought.inputs.get("rollouts", "")) if brought is not None else None
    own = [manifests[each] for each in rollouts.inputs.values()] if rollouts is not None else []
    source = _with_rows(store, own, TRAJECTORIES.name, pl.col("trajectory_id") == entry.source_trajectory_id)
    with_it = _trained_on(shown, children)
    on_source = {key: each for key, each in _trained_on(source, children).items() if key not in with_it}
    known = with_it | on_source
    later = {
        key: each
        for key, each in _descendants(known, children).items()
        if key not in known and _is_checkpoint(each)
    }
    return Reach(
        _policies(with_it), _policies(on_source), _policies(later), _derived(store, manifests, entry)
    )


def _trained_on(
    origins: Iterable[Manifest], children: Mapping[str, Sequence[Manifest]]
) -> dict[str, Manifest]:
    """The nearest checkpoints made from artifacts, other than by what memory kept of them."""
    found: dict[str, Manifest] = {}
    waiting, seen = deque(origins), set[str]()
    while waiting:
        for child in children.get(waiting.popleft().artifact_id, ()):
            if child.artifact_id in seen or child.stage in _MEMORY_STAGES:
                continue
            seen.add(child.artifact_id)
            if _is_checkpoint(child):
                found[child.artifact_id] = child
            else:
                waiting.append(child)
    return found


def _descendants(
    origins: Mapping[str, Manifest], children: Mapping[str, Sequence[Manifest]]
) -> dict[str, Manifest]:
    found: dict[str, Manifest] = {}
    waiting = deque(origins)
    while waiting:
        for child in children.get(waiting.popleft(), ()):
            if child.artifact_id not in found:
                found[child.artifact_id] = child
                waiting.append(child.artifact_id)
    return found


def _with_rows(
    store: ArtifactStore, manifests: Sequence[Manifest], table: str, condition: pl.Expr
) -> list[Manifest]:
    """Those artifacts of which a row meets a condition."""
    found = []
    for manifest in manifests:
        artifact = store.open(manifest.artifact_id)
        files = [artifact.rows_path(entry.path) for entry in manifest.files if entry.table == table]
        if scan_trajectories(files).filter(condition).head(1).select("trajectory_id").collect().height:
            found.append(manifest)
    return found


def _derived(store: ArtifactStore, manifests: Mapping[str, Manifest], entry: MemoryEntry) -> list[str]:
    files = [
        store.open(manifest.artifact_id).path(file.path)
        for manifest in manifests.values()
        for file in manifest.files
        if file.table == MEMORY.name
    ]
    rows = scan_deltas(files).filter(pl.col("parent_entry_ids").list.contains(entry.entry_id))
    return rows.select("entry_id").unique().collect()["entry_id"].sort().to_list()


def _is_checkpoint(manifest: Manifest) -> bool:
    return any(file.path.startswith(_MODEL) for file in manifest.files)


def _policies(manifests: Mapping[str, Manifest]) -> list[Policy]:
    found = [Policy(each.artifact_id, each.stage, each.run, each.iteration) for each in manifests.values()]
    return sorted(found, key=lambda each: (each.run, each.iteration or 0, each.stage, each.artifact_id))
