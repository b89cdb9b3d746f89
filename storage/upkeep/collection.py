"""Garbage collection: removes artifacts that no run reaches, and files that killed processes left behind.

An artifact is reached if a line of a run's ledger names it, if an alias of a served run means it or meant it
before, or if it is an input of a reached artifact.
Qualifications stay: they are about an environment, which any run may use, and are small.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError, StoreError, store_errors
from storage.filesystem import StoreRoot, open_root
from storage.lineage.graph import walk_inputs
from storage.runs.locks import lock_collection
from storage.runs.run import RunStore
from storage.serving.aliases import aliased_checkpoints
from storage.upkeep.leftovers import Leftover, list_folders, local_leftovers, of_artifact, set_aside
from storage.upkeep.runs import find_unrecorded, list_whole_runs, run_roots, undamaged
from storage.upkeep.sizes import freed_bytes, listed_file, stored_bytes

_KEPT: tuple[ArtifactKind, ...] = ("qualification",)


@dataclass(frozen=True)
class CollectionPlan:
    """What collection would remove, and what it keeps."""

    runs: int
    reached: int
    reached_bytes: int
    """Bytes that files of reached artifacts take in the store."""
    unreached: tuple[Manifest, ...]
    """Each before its inputs, so that an interrupted collection leaves no artifact without its inputs."""
    unreached_bytes: Mapping[str, int]
    """Artifact id -> bytes that removing it, with all of `unreached`, frees. Bytes that several of them share
    count for one, and those that another artifact shares for none."""
    young: int
    """Number of artifacts that no run reaches but that are younger than the age limit."""
    leftovers: tuple[Leftover, ...]

    @property
    def bytes(self) -> int:
        """Bytes that removing all unreached artifacts and leftovers frees."""
        return sum(self.unreached_bytes.values()) + sum(item.bytes for item in self.leftovers)


def plan_collection(store_uri: str, minimum_age: timedelta) -> CollectionPlan:
    """Artifacts that no run reaches and that are older than `minimum_age`, and leftovers; changes nothing.

    The age limit protects artifacts that are committed before a ledger names them.

    Raises:
        InputError: a folder is no store.
        StoreError: a ledger, or the manifest of a reached artifact, cannot be read, or a ledger is older than
            the store: then it is unknown what else is reached.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    before = datetime.now(UTC) - minimum_age
    runs = list_whole_runs(store_uri)
    _require_store(root, store, runs)
    # Ledgers are read after the listing: an artifact that is committed and recorded in between is either not
    # listed or reached.
    listed = list_folders(root, root.join("artifacts"))
    named = {each for name in runs for each in run_roots(store_uri, name)}
    reached = _reached(store, named | aliased_checkpoints(store_uri))
    unreached: dict[str, Manifest] = {}
    young = 0
    leftovers: list[Leftover] = []
    for (stage, artifact_id), files in listed.items():
        manifest = reached.get(artifact_id) or undamaged(store, artifact_id, stage)
        if manifest is not None and artifact_id not in reached and manifest.kind not in _KEPT:
            if manifest.finished_at < before:
                # It goes with everything in its folder, leftovers too.
                unreached[artifact_id] = manifest
                continue
            young += 1
        folder = root.join("artifacts", stage, artifact_id)
        leftovers += of_artifact(root, store, folder, files, manifest, before)
    _require_whole_ledgers(store, {manifest.run for manifest in unreached.values()} & set(runs))
    leftovers += set_aside(root, before)
    leftovers += local_leftovers(root, store, runs, {artifact_id for _, artifact_id in listed}, before)
    return CollectionPlan(
        runs=len(runs),
        reached=len(reached),
        reached_bytes=stored_bytes(
            listed_file(info)
            for (_, artifact_id), files in listed.items()
            if artifact_id in reached
            for info in files.values()
        ),
        unreached=tuple(_consumers_first(unreached)),
        unreached_bytes=freed_bytes(
            {
                artifact_id: [listed_file(info) for info in files.values()]
                for (_, artifact_id), files in listed.items()
                if artifact_id in unreached
            }
        ),
        young=young,
        leftovers=tuple(leftovers),
    )


def collect(store_uri: str, minimum_age: timedelta) -> CollectionPlan:
    """Remove what `plan_collection` finds; returns what was removed.

    A kill leaves whole artifacts and leftovers, which the next call removes.

    Raises RunBusy when a run of the store is being worked on, or another machine has taken over, and what
    `plan_collection` raises.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    _require_store(root, store, RunStore(store_uri).list())  # else the lock would be put into any folder
    with lock_collection(root, RunStore(store_uri).list) as require_lock:
        plan = plan_collection(store_uri, minimum_age)
        for manifest in plan.unreached:
            require_lock()
            store.remove(manifest)
        for item in plan.leftovers:
            require_lock()
            with store_errors("remove", item.path):
                if item.remote:
                    root.fs.rm(item.path, recursive=True)
                elif Path(item.path).is_dir():
                    shutil.rmtree(item.path)
                else:
                    Path(item.path).unlink(missing_ok=True)
    return plan


def _require_store(root: StoreRoot, store: ArtifactStore, runs: Sequence[str]) -> None:
    """Raise InputError for a folder of this machine that has neither a run nor an artifact: its `staging` or
    `artifacts` may be its user's."""
    found = (
        undamaged(store, artifact_id, stage) for stage in store.stages() for artifact_id in store.ids(stage)
    )
    if root.local and not runs and not any(found):
        raise InputError(
            f"{root.path} has neither a run nor an artifact, so nothing in it is removed. --store or "
            "ERL_PIPELINE_STORE names another store."
        )


def _reached(store: ArtifactStore, roots: Iterable[str]) -> dict[str, Manifest]:
    def find(artifact_id: str) -> Manifest | None:
        try:
            return store.find(artifact_id)
        except DamagedArtifact as damage:
            raise StoreError(
                f"{damage} A run reaches it, and what it was made from is not known, so it is not known "
                "what is garbage. `erl-pipeline train CONFIG --check` of that run makes it again."
            ) from damage

    # A missing artifact was set aside, and is made again from others that the same ledger names.
    return walk_inputs(find, sorted(roots)).manifests


def _require_whole_ledgers(store: ArtifactStore, names: Iterable[str]) -> None:
    """Raise StoreError if one of these runs, which made what is to be removed, lacks lines of its ledger."""
    for name in sorted(names):
        run = RunStore(store.uri).open(name)
        if unrecorded := find_unrecorded(store, run, run.recorded()):
            raise StoreError(f"Nothing is removed: {unrecorded.sentence}")


def _consumers_first(manifests: Mapping[str, Manifest]) -> list[Manifest]:
    ordered: dict[str, Manifest] = {}

    for start in sorted(manifests):
        path = [(start, iter(sorted(manifests[start].inputs.values())))]
        while path:
            artifact_id, inputs = path[-1]
            following = next((one for one in inputs if one in manifests and one not in ordered), None)
            if following is not None:
                path.append((following, iter(sorted(manifests[following].inputs.values()))))
            else:
                ordered[artifact_id] = manifests[artifact_id]
                path.pop()
    return list(ordered.values())[::-1]
