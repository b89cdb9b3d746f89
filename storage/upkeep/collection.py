"""Garbage collection: what no run reaches, and what killed processes have left behind.

An artifact is reached when a line of a run's ledger names it, or when it is an input of one that is reached.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from storage.artifacts.layout import TRASH, upload_folder
from storage.artifacts.manifest import Manifest
from storage.artifacts.pruned import PRUNED
from storage.artifacts.staging import abandoned
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, StoreError
from storage.filesystem import StoreRoot, list_names, open_root, store_errors
from storage.runs.locks import lock_collection
from storage.runs.origin import OfflineOrigin, read_origin
from storage.runs.run import RunStore

LeftoverKind = Literal[
    "staging of a dead process",
    "half deleted",
    "set aside as damaged",
    "without a manifest",
    "half written",
    "pruned, and still there",
    "memory table of no run",
    "download of a deleted artifact",
]

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")


@dataclass(frozen=True)
class Leftover:
    """Files that belong to nothing. `path` is fsspec's in the store where `remote`, else a local one."""

    kind: LeftoverKind
    path: str
    files: int
    bytes: int
    remote: bool = False


@dataclass(frozen=True)
class CollectionPlan:
    """What collection would remove, and what it keeps."""

    runs: int
    reached: int
    reached_bytes: int
    """What lies in the store of them."""
    unreached: tuple[Manifest, ...]
    """Consumers before what they were made from: an end half-way then leaves nothing without its inputs."""
    young: int
    """Artifacts that no run reaches, but that are younger than the age limit."""
    leftovers: tuple[Leftover, ...]

    @property
    def bytes(self) -> int:
        """What removing all of it frees."""
        return sum(map(committed_bytes, self.unreached)) + sum(item.bytes for item in self.leftovers)


def committed_bytes(manifest: Manifest) -> int:
    """Bytes of an artifact's files as they were committed."""
    return sum(entry.bytes for entry in manifest.files)


def plan_collection(store_uri: str, minimum_age: timedelta) -> CollectionPlan:
    """What no run reaches and is older than `minimum_age`; changes nothing.

    The age limit is for artifacts that something commits before a ledger names them.

    Raises StoreError when a ledger, or a manifest that a run reaches, cannot be read: what it would lead to
    is then unknown.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    before = datetime.now(UTC) - minimum_age
    runs = _run_names(root, store_uri)
    # Ledgers after the listing: what is committed and recorded in between is not listed, or is reached.
    listed = _listing(root, root.join("artifacts"))
    reached = _reached(store, _roots(store_uri, runs))
    unreached: dict[str, Manifest] = {}
    young = 0
    leftovers: list[Leftover] = []
    for (stage, artifact_id), files in listed.items():
        manifest = reached.get(artifact_id) or _manifest(store, artifact_id, stage)
        stray = _without_manifest(root, files, manifest)
        if stray and max(map(_modified, stray.values())) < before:
            leftovers += _stray_files(root, root.join("artifacts", stage, artifact_id), stray, manifest)
        if manifest is not None and PRUNED in files:
            leftovers += _pruned_yet_there(root, store, manifest, files)
        if manifest is None or artifact_id in reached:
            continue
        if manifest.finished_at < before:
            unreached[artifact_id] = manifest
        else:
            young += 1
    leftovers += _set_aside(root, before)
    leftovers += _local_leftovers(root, store, runs, {artifact_id for _, artifact_id in listed}, before)
    return CollectionPlan(
        runs=len(runs),
        reached=len(reached),
        reached_bytes=sum(
            int(info["size"])
            for (_, artifact_id), files in listed.items()
            if artifact_id in reached
            for info in files.values()
        ),
        unreached=tuple(_consumers_first(unreached)),
        young=young,
        leftovers=tuple(leftovers),
    )


def collect(store_uri: str, minimum_age: timedelta) -> CollectionPlan:
    """Remove what `plan_collection` finds; gives what was removed.

    A kill leaves whole artifacts and leftovers, which the next call removes.

    Raises RunBusy when a run of the store is being worked on, StoreError as `plan_collection` does.
    """
    root, store = open_root(store_uri), ArtifactStore(store_uri)
    with lock_collection(root, RunStore(store_uri).list()):
        plan = plan_collection(store_uri, minimum_age)
        for manifest in plan.unreached:
            store.remove(manifest)
        for item in plan.leftovers:
            with store_errors("remove", item.path):
                if item.remote:
                    root.fs.rm(item.path, recursive=True)
                elif Path(item.path).is_dir():
                    shutil.rmtree(item.path)
                else:
                    Path(item.path).unlink(missing_ok=True)
    return plan


def _run_names(root: StoreRoot, store_uri: str) -> list[str]:
    runs = RunStore(store_uri).list()
    for name in list_names(root, root.join("runs")):
        if name not in runs and any(
            file.startswith("ledger") for file in list_names(root, root.join("runs", name))
        ):
            raise StoreError(
                f"{root.join('runs', name)} has a ledger and no run.json, so it is not known what that run "
                "needs. Put run.json back, or remove the folder if the run is no longer wanted."
            )
    return runs


def _roots(store_uri: str, runs: Sequence[str]) -> set[str]:
    roots: set[str] = set()
    for name in runs:
        roots |= {entry.artifact_id for entry in RunStore(store_uri).open(name).recorded()}
        origin = read_origin(store_uri, name)
        if isinstance(origin, OfflineOrigin) and origin.checkpoint_id is not None:
            roots.add(origin.checkpoint_id)
    return roots


def _reached(store: ArtifactStore, roots: Iterable[str]) -> dict[str, Manifest]:
    found: dict[str, Manifest] = {}
    waiting = sorted(roots)
    while waiting:
        artifact_id = waiting.pop()
        if artifact_id in found:
            continue
        try:
            manifest = store.find(artifact_id)
        except DamagedArtifact as damage:
            raise StoreError(
                f"{damage} A run reaches it, and what it was made from is not known, so nothing can be said "
                "to be garbage. `erl-pipeline train CONFIG --check` of that run makes it again."
            ) from damage
        # One that is set aside is made again from what the same ledger names.
        if manifest is not None:
            found[artifact_id] = manifest
            waiting += manifest.inputs.values()
    return found


def _manifest(store: ArtifactStore, artifact_id: str, stage: str) -> Manifest | None:
    try:
        return store.find(artifact_id, stage)
    except DamagedArtifact:
        return None


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


def _listing(root: StoreRoot, folder: str) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """(stage, artifact id or name) -> path under it -> fsspec's information."""
    with store_errors("list", folder):
        found = root.fs.find(folder, detail=True)
    listed: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for path, info in found.items():
        parts = str(path).removeprefix(folder).strip("/").split("/", 2)
        if len(parts) == 3:
            listed.setdefault((parts[0], parts[1]), {})[parts[2]] = info
    return listed


def _without_manifest(
    root: StoreRoot, files: Mapping[str, dict[str, Any]], manifest: Manifest | None
) -> dict[str, dict[str, Any]]:
    """Files of an artifact's folder that no manifest stands for; of a local artifact none, since it was
    published whole: `lineage verify` names what is strange in it."""
    if manifest is None:
        return dict(files)
    if root.local:
        return {}
    own = f"{upload_folder(manifest)}/"
    return {path: info for path, info in files.items() if "/" in path and not path.startswith(own)}


def _stray_files(
    root: StoreRoot, folder: str, stray: Mapping[str, dict[str, Any]], manifest: Manifest | None
) -> list[Leftover]:
    if manifest is None:
        return [_leftover("without a manifest", folder, stray.values(), remote=not root.local)]
    return [
        _leftover(
            "without a manifest",
            f"{folder}/{upload}",
            [info for path, info in stray.items() if path.startswith(f"{upload}/")],
            remote=True,
        )
        for upload in sorted({path.split("/", 1)[0] for path in stray})
    ]


def _pruned_yet_there(
    root: StoreRoot, store: ArtifactStore, manifest: Manifest, files: Mapping[str, dict[str, Any]]
) -> list[Leftover]:
    """Files that were pruned, and that a kill left there."""
    folder = root.join("artifacts", manifest.stage, manifest.artifact_id)
    own = "" if root.local else f"{upload_folder(manifest)}/"
    return [
        _leftover("pruned, and still there", f"{folder}/{path}", [files[path]], remote=not root.local)
        for path in (own + file.path for file in store.pruned(manifest).files)
        if path in files
    ]


def _set_aside(root: StoreRoot, before: datetime) -> list[Leftover]:
    return [
        _leftover(
            "set aside as damaged", root.join("damaged", stage, name), files.values(), remote=not root.local
        )
        for (stage, name), files in _listing(root, root.join("damaged")).items()
        if max(map(_modified, files.values())) < before
    ]


def _local_leftovers(
    root: StoreRoot, store: ArtifactStore, runs: Sequence[str], ids: set[str], before: datetime
) -> list[Leftover]:
    """What lies on this machine: in a local store, or in the scratch folder of an object store."""
    scratch = root.scratch
    found = [_of_folder("staging of a dead process", path) for path in abandoned(store.staging_folder)]
    found += [_of_folder("half deleted", path) for path in _children(scratch / TRASH)]
    memory = [path for path in _children(scratch / "memory") if path.is_dir() and path.name not in runs]
    found += [_of_folder("memory table of no run", path) for path in memory if _touched(path) < before]
    if not root.local:
        gone = [path for path in _children(scratch / "downloads") if path.name not in ids]
        return found + [_of_folder("download of a deleted artifact", path) for path in gone]
    half = [
        path
        for folder in _children(scratch / "runs")
        for path in _children(folder)
        if _TEMPORARY.fullmatch(path.name) and _touched(path) < before
    ]
    return found + [_of_folder("half written", path) for path in half]


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _touched(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _of_folder(kind: LeftoverKind, path: Path) -> Leftover:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return Leftover(kind, str(path), len(files), sum(file.stat().st_size for file in files))


def _leftover(kind: LeftoverKind, path: str, files: Iterable[Mapping[str, Any]], *, remote: bool) -> Leftover:
    sizes = [int(info["size"]) for info in files]
    return Leftover(kind, path, len(sizes), sum(sizes), remote)


def _modified(info: Mapping[str, Any]) -> datetime:
    """When a file was written, by fsspec's information of a local file or of an object of some store."""
    if "mtime" in info:
        return datetime.fromtimestamp(info["mtime"], UTC)
    for name in ("LastModified", "updated", "created"):
        if isinstance(info.get(name), datetime):
            moment: datetime = info[name]
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # An age that cannot be told is no age to delete at.
    return datetime.max.replace(tzinfo=UTC)
