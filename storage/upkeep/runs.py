"""A run in its store: what it takes there, what its ledger lacks, and how it is removed.

A stage is begun only after what it reads is recorded, so a kill leaves only artifacts that nothing was made
from. An unrecorded artifact that was made from another unrecorded one shows that the ledger is an older copy,
put back.
"""

import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError, StoreError, store_errors
from storage.filesystem import StoreRoot, list_names, open_root
from storage.lineage.graph import walk_inputs
from storage.runs.documents import IMPORTED, OfflineOrigin, read_origin
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore
from storage.serving.traffic import serving_folder
from storage.upkeep.leftovers import list_folders
from storage.upkeep.sizes import StoredFile, freed_bytes, listed_file, stored_bytes


def list_whole_runs(store_uri: str) -> list[str]:
    """Names of all runs, for who deletes what none of them needs.

    Raises StoreError for a run without `run.json`: what it needs is not known.
    """
    root, runs = open_root(store_uri), RunStore(store_uri)
    names = runs.list()
    for name in list_names(root, root.join("runs")):
        if name in names or not any(
            file.startswith("ledger") for file in list_names(root, root.join("runs", name))
        ):
            continue
        if name not in runs.list():  # else it was begun just now
            raise StoreError(
                f"{root.join('runs', name)} has a ledger and no run.json, so it is not known what that run "
                "needs. Put run.json back, or remove the folder if the run is no longer wanted."
            )
        names.append(name)
    return names


def run_roots(store_uri: str, name: str) -> set[str]:
    """The artifacts that a run names: those of its ledger, and the checkpoint that it began from."""
    named = {entry.artifact_id for entry in RunStore(store_uri).open(name).recorded()}
    return named | begun_with(store_uri, name)


def begun_with(store_uri: str, name: str) -> set[str]:
    """The checkpoint of another run that a run on stored rollouts began with, if any."""
    origin = read_origin(store_uri, name)
    began = origin.checkpoint_id if isinstance(origin, OfflineOrigin) else None
    return set() if began is None else {began}


def undamaged(store: ArtifactStore, artifact_id: str, stage: str | None = None) -> Manifest | None:
    """The manifest of an artifact; None where there is none, or a damaged one."""
    with suppress(DamagedArtifact):
        return store.find(artifact_id, stage)
    return None


@dataclass(frozen=True)
class RunUsage:
    """Number of artifacts that a run reaches, and the bytes that they take in the store.

    `own` are the bytes that only artifacts which no other run reaches have: garbage collection frees them
    when the run is removed. `shared` are the other bytes.
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
    stored: dict[str, list[StoredFile]] = {}
    for (_, artifact_id), files in list_folders(root, root.join("artifacts")).items():
        stored.setdefault(artifact_id, []).extend(map(listed_file, files.values()))
    find = cache(partial(undamaged, store))
    reached: dict[str, set[str]] = {}
    for name in RunStore(store_uri).list():
        try:
            roots = run_roots(store_uri, name)
        except StoreError:
            continue
        reached[name] = (roots | walk_inputs(find, sorted(roots)).manifests.keys()) & stored.keys()
    runs = Counter(artifact_id for ids in reached.values() for artifact_id in ids)
    usages = {}
    for name, ids in reached.items():
        own = sum(freed_bytes({each: stored[each] for each in ids if runs[each] == 1}).values())
        taken = stored_bytes(file for each in ids for file in stored[each])
        usages[name] = RunUsage(artifacts=len(ids), own=own, shared=taken - own)
    return usages


@dataclass(frozen=True)
class Unrecorded:
    """Artifacts that a run made from others of its own, where the ledger has neither; the oldest first."""

    run: Run
    artifacts: tuple[Manifest, ...]

    @property
    def sentence(self) -> str:
        """What is wrong, and what mends it."""
        first = self.artifacts[0]
        more = f" and {len(self.artifacts) - 1} more" if len(self.artifacts) > 1 else ""
        found = (
            f"the ledger of run {self.run.name} is older than the store: it lacks artifact "
            f"{first.artifact_id} (iteration {first.iteration or 0}, {first.stage}){more}, and what that was "
            "made from"
        )
        if "method" not in self.run.config:  # a run that is not trained
            return f"{found}. Put the newest copy of the ledger and its head back."
        last = max(manifest.iteration or 1 for manifest in self.artifacts)
        return (
            f"{found}. `erl-pipeline train CONFIG --name {self.run.name} --check --iterations {last}` makes "
            "the ledger again."
        )


def find_unrecorded(store: ArtifactStore, run: Run, entries: Sequence[LedgerEntry]) -> Unrecorded | None:
    """What was made from something else that the ledger lacks too; None if there is nothing.

    Left out is what something else than lost lines explains: what was made before the ledger's first line, by
    an earlier run of this name; what was made again later at the same place; what this run made again for
    another run, whose ledger names it; and evaluations on tasks that were made for them.

    Only manifests of artifacts that no run's ledger says it computed are read. An empty ledger is not judged.
    """
    if not entries:
        return None
    known = {entry.artifact_id for entry in entries} | RunStore(store.uri).computed_by_others(run.name)
    own = [manifest for manifest in _others(store, known) if manifest.run == run.name]
    # A process at work may have made and recorded more since the ledger was read.
    lost = _lost(own, run.recorded()) if _lost(own, entries) else []
    return Unrecorded(run, tuple(sorted(lost, key=lambda each: each.started_at))) if lost else None


def _lost(own: Sequence[Manifest], entries: Sequence[LedgerEntry]) -> list[Manifest]:
    """Those artifacts that were made from others of them, as far as nothing explains it."""
    known = {entry.artifact_id for entry in entries}
    unrecorded = {each.artifact_id: each for each in own if each.artifact_id not in known}
    begun = min(entry.recorded_at for entry in entries)
    last = {(entry.iteration, entry.stage): entry.recorded_at for entry in entries}
    return [
        manifest
        for manifest in unrecorded.values()
        if any(
            input_id in unrecorded and (unrecorded[input_id].kind, manifest.kind) != ("tasks", "evaluation")
            for input_id in manifest.inputs.values()
        )
        and max(begun, last.get((manifest.iteration, manifest.stage), begun)) < manifest.started_at
    ]


def _others(store: ArtifactStore, known: Collection[str]) -> Iterator[Manifest]:
    for stage in store.stages():
        for artifact_id in store.ids(stage):
            if artifact_id not in known:
                # A damaged artifact that no ledger names says nothing about this run.
                manifest = undamaged(store, artifact_id, stage)
                if manifest is not None:
                    yield manifest


def remove_run(store_uri: str, name: str) -> None:
    """Remove a run from a store. A kill leaves a run that can be removed again.

    Raises:
        InputError: there is no such run, or another one was begun from it and needs its plan, or the folder
            of its serving is still there: only with the run can its users be forgotten.
        RunBusy: a process works on it.
        StoreError: the store cannot be written.
    """
    root, runs = open_root(store_uri), RunStore(store_uri)
    run = runs.open(name)
    needed = [other for other in runs.list() if _began_from(store_uri, other, name)]
    if needed:
        raise InputError(
            f"run {name} cannot be removed: {', '.join(needed)} began from it and cannot go on without it. "
            f"Remove {'that' if len(needed) == 1 else 'those'} first."
        )
    with run.lock(), store_errors("remove", root.join("runs", name)):
        if root.local and (served := serving_folder(store_uri, name)).exists():
            raise InputError(
                f"run {name} cannot be removed: {served} has its aliases, what users said, and the key that "
                "finds them. Run `erl-pipeline forget-user` for users who asked for it, stop its server, "
                "remove that folder, and then the run."
            )
        _remove_files(root, name)


def _began_from(store_uri: str, other: str, name: str) -> bool:
    origin = read_origin(store_uri, other)
    if origin is None or origin.run == name:
        return origin is not None
    # A night of a served run goes on from its traffic, and has its tasks and first checkpoint from the run.
    runs = RunStore(store_uri)
    held = runs.open(origin.run).config.get(IMPORTED, {}) if origin.run in runs.list() else {}
    return bool(held.get("served") == name)


def _remove_files(root: StoreRoot, name: str) -> None:
    """Remove `run.json` and the lock last: a ledger without `run.json` would belong to no run."""
    record, local = root.join("runs", name, "run.json"), root.scratch / "runs" / name
    if not root.local:
        kept = (record, root.join("runs", name, "lease"))
        for path in root.fs.find(root.join("runs", name)):
            if not str(path).startswith(kept):
                root.fs.rm_file(path)
    for path in local.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in ("run.json", "lock"):
            path.unlink()
    root.fs.rm_file(record)
    (local / "lock").unlink()
    with suppress(OSError):  # the folder is not empty if a run of this name was begun just now
        local.rmdir()
