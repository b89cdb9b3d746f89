"""Artifact to artifact: what was made from what, read from the manifests of a store."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedRecord, InputError
from storage.lineage.graph import walk_inputs
from storage.runs.run import RunStore


def reachable(store: ArtifactStore, artifact_ids: Iterable[str]) -> list[Manifest]:
    """Manifests of artifacts and of everything they were made from, each once, the nearest first.

    Raises InputError for one that is not in the store.
    """
    ancestry = walk_inputs(store.find, artifact_ids)
    for artifact_id in ancestry.missing:
        raise InputError(f"no artifact {artifact_id} in store {store.uri}.")
    return list(ancestry.manifests.values())


def runs_by_artifact(runs: RunStore) -> dict[str, list[str]]:
    """For each artifact, the sorted names of the runs whose ledgers name it; several runs may share one.
    Runs with damaged records are left out."""
    found: dict[str, dict[str, None]] = {}
    for name in runs.list():
        with suppress(DamagedRecord):
            for entry in runs.open(name).stages():
                found.setdefault(entry.artifact_id, {})[name] = None
    return {artifact_id: list(names) for artifact_id, names in found.items()}
