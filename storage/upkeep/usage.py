"""How much of a store each run takes: artifacts that only it reaches, and those that it shares."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, StoreError
from storage.filesystem import open_root
from storage.lineage.graph import walk_inputs
from storage.runs.run import RunStore
from storage.upkeep.collection import run_roots
from storage.upkeep.leftovers import list_folders


@dataclass(frozen=True)
class RunUsage:
    """Number of artifacts that a run reaches, and the bytes that they take in the store.

    `own` are the bytes of artifacts that no other run reaches: garbage collection frees them when the run is
    removed. `shared` are the bytes of the others.
    """

    artifacts: int
    own: int
    shared: int


def usage_by_run(store_uri: str) -> dict[str, RunUsage]:
    """The usage of every run of a store, by name. An artifact with a damaged manifest is counted, but its
    inputs are not known. A run with a damaged record is left out: what it reaches is not known either.

    Raises StoreError when the store cannot be read.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    sizes: Counter[str] = Counter()
    for (_, artifact_id), files in list_folders(root, root.join("artifacts")).items():
        sizes[artifact_id] += sum(int(info["size"]) for info in files.values())

    @cache
    def find(artifact_id: str) -> Manifest | None:
        with suppress(DamagedArtifact):
            return store.find(artifact_id)
        return None

    reached: dict[str, set[str]] = {}
    for name in RunStore(store_uri).list():
        try:
            roots = run_roots(store_uri, name)
        except StoreError:
            continue
        reached[name] = (roots | walk_inputs(find, sorted(roots)).manifests.keys()) & sizes.keys()
    runs = Counter(artifact_id for ids in reached.values() for artifact_id in ids)
    return {
        name: RunUsage(
            artifacts=len(ids),
            own=sum(sizes[each] for each in ids if runs[each] == 1),
            shared=sum(sizes[each] for each in ids if runs[each] > 1),
        )
        for name, ids in reached.items()
    }
