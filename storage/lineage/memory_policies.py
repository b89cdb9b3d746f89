"""Which policies a memory entry has reached, in all runs of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.lineage.graph import START, ArtifactGraph
from storage.memory.entries import MEMORY, MemoryEntry, scan_deltas
from storage.tables.trajectories import TRAJECTORIES, scan_trajectories

_NO_WAY: tuple[ArtifactKind, ...] = ("memory", "request", "selection")
"""Kinds of artifacts between rollouts and a policy through which it was not trained on the rollouts."""


@dataclass(frozen=True)
class ReachedPolicy:
    """A checkpoint that an entry has reached."""

    artifact_id: str
    stage: str
    run: str
    iteration: int | None


@dataclass(frozen=True)
class ReachedPolicies:
    """The policies that an entry has reached. Each policy is in the first list that it belongs to."""

    trained_with_it: Sequence[ReachedPolicy]
    """Trained on rollouts in which a prompt held the entry."""
    trained_on_its_source: Sequence[ReachedPolicy]
    """Trained on the rollouts that the entry was taken from."""
    descendants: Sequence[ReachedPolicy]
    """Trained from one of those policies later, or on what it generated."""
    derived_entries: Sequence[str]
    """Entries whose text was written while this entry was in the prompt."""


def policies_reached(store: ArtifactStore, entry: MemoryEntry) -> ReachedPolicies:
    """Every policy of the store that an entry reached; each file is verified before it is read."""
    graph = ArtifactGraph(store.list())
    shown = _with_rows(
        store,
        [
            each
            for each in graph.manifests.values()
            if each.kind == "trajectories" and _saw_memory(graph, each)
        ],
        pl.col("memory_entry_ids").list.contains(entry.entry_id),
    )
    source = _with_rows(
        store,
        _rollouts_of(graph, entry.memory_version),
        pl.col("trajectory_id") == entry.source_trajectory_id,
    )
    with_it = _trained_on(graph, shown)
    on_source = [each for each in _trained_on(graph, source) if each not in with_it]
    known = dict.fromkeys([*with_it, *on_source], START)
    later = [each for each in graph.descendants(known) if each not in known and graph.is_checkpoint(each)]
    return ReachedPolicies(
        _described(graph, with_it),
        _described(graph, on_source),
        _described(graph, later),
        _derived(store, graph.manifests, entry),
    )


def _saw_memory(graph: ArtifactGraph, manifest: Manifest) -> bool:
    """Whether an artifact holds trajectories that were sampled with a memory."""
    if manifest.kind != "trajectories":
        return False
    inputs = (graph.manifests.get(input_id) for input_id in manifest.inputs.values())
    return any(each is not None and each.kind == "memory" for each in inputs)


def _rollouts_of(graph: ArtifactGraph, memory_version: str) -> list[Manifest]:
    """The trajectories that a memory version was made from directly, not by way of its parent."""
    nearest = graph.ancestors({memory_version: START}, depth=2)
    ways = [memory_version, *(each for each in nearest if _kind(graph, each) == "rollouts")]
    return [
        graph.manifests[each]
        for each, visit in nearest.items()
        if _kind(graph, each) == "trajectories" and visit.via in ways
    ]


def _kind(graph: ArtifactGraph, artifact_id: str) -> ArtifactKind | None:
    manifest = graph.manifests.get(artifact_id)
    return None if manifest is None else manifest.kind


def _trained_on(graph: ArtifactGraph, origins: Iterable[Manifest]) -> list[str]:
    """The nearest checkpoints made from artifacts; paths through a memory or a selection do not count."""
    starts = [manifest.artifact_id for manifest in origins]
    return graph.nearest_checkpoints(starts, through=lambda manifest: manifest.kind not in _NO_WAY)


def _with_rows(store: ArtifactStore, manifests: Sequence[Manifest], condition: pl.Expr) -> list[Manifest]:
    """Those artifacts that hold a trajectory which meets a condition."""
    found = []
    for manifest in manifests:
        artifact = store.open_found(manifest)
        files = [
            artifact.rows_path(entry.path) for entry in manifest.files if entry.table == TRAJECTORIES.name
        ]
        if scan_trajectories(files).filter(condition).head(1).select("trajectory_id").collect().height:
            found.append(manifest)
    return found


def _derived(store: ArtifactStore, manifests: Mapping[str, Manifest], entry: MemoryEntry) -> list[str]:
    files = [
        store.open_found(manifest).path(file.path)
        for manifest in manifests.values()
        for file in manifest.files
        if file.table == MEMORY.name
    ]
    rows = scan_deltas(files).filter(pl.col("parent_entry_ids").list.contains(entry.entry_id))
    return rows.select("entry_id").unique().collect()["entry_id"].sort().to_list()


def _described(graph: ArtifactGraph, artifact_ids: Iterable[str]) -> list[ReachedPolicy]:
    found = [
        ReachedPolicy(each.artifact_id, each.stage, each.run, each.iteration)
        for each in (graph.manifests[artifact_id] for artifact_id in artifact_ids)
    ]
    return sorted(found, key=lambda each: (each.run, each.iteration or 0, each.stage, each.artifact_id))
