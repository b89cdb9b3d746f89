"""Files of a store that belong to nothing, such as those that killed processes left behind."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from storage.artifacts.artifact import KEPT_ROWS, PRUNED, is_half_record
from storage.artifacts.layout import ARTIFACT_NAME, MOVED_NAME, upload_folder
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import store_errors
from storage.filesystem import StoreRoot
from storage.runs.run import is_run_name
from storage.upkeep.sizes import StoredFile, freed_bytes, listed_file, local_file

LeftoverKind = Literal[
    "staging of a dead process",
    "half deleted",
    "set aside as damaged",
    "without a manifest",
    "half written",
    "pruned, and still there",
    "half pruned",
    "memory table of no run",
    "download of a deleted artifact",
]

_TABLE = "reflections.lance"
"""What `storage.memory.index` makes in the folder of a run's table. Not imported: Arrow is heavy."""
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")


@dataclass(frozen=True)
class Leftover:
    """Files that belong to nothing. `path` is fsspec's path in the store if `remote`, else a local path.
    `bytes` are those that removing them frees."""

    kind: LeftoverKind
    path: str
    files: int
    bytes: int
    remote: bool = False


def list_folders(root: StoreRoot, folder: str) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """(stage, artifact id or name) -> path under it -> fsspec's information."""
    with store_errors("list", folder):
        found = root.fs.find(folder, detail=True)
    listed: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for path, info in found.items():
        parts = str(path).removeprefix(folder).strip("/").split("/", 2)
        if len(parts) == 3:
            listed.setdefault((parts[0], parts[1]), {})[parts[2]] = info
    return listed


def of_artifact(
    root: StoreRoot,
    store: ArtifactStore,
    folder: str,
    files: Mapping[str, dict[str, Any]],
    manifest: Manifest | None,
    before: datetime,
) -> list[Leftover]:
    """Leftovers in an artifact's folder, whose `files` are given with fsspec's information.

    Uploads that belong to no manifest, if all of their files are older than `before`; files that count as
    pruned but that a kill left in place; and what a killed pruning left without a record.
    """
    if manifest is None:
        if not ARTIFACT_NAME.fullmatch(folder.rpartition("/")[2]):
            return []
        return _if_old("without a manifest", folder, files, before, remote=not root.local)
    # A local artifact was published whole, and `lineage verify` reports files that were added later.
    own = "" if root.local else f"{upload_folder(manifest)}/"
    uploads: dict[str, dict[str, dict[str, Any]]] = {}
    for path, info in files.items():
        if "/" in path and not path.startswith(own):
            uploads.setdefault(path.split("/", 1)[0], {})[path] = info
    found = [
        leftover
        for name in sorted(uploads)
        for leftover in _if_old("without a manifest", f"{folder}/{name}", uploads[name], before, remote=True)
    ]
    half = {path for path in files if path.startswith(f"{own}{KEPT_ROWS}/") or is_half_record(path)}
    if half or PRUNED in files:
        pruned = store.pruned(manifest).files
        half -= {f"{own}{file.kept.path}" for file in pruned if file.kept is not None}
        kinds: dict[str, LeftoverKind] = {own + file.path: "pruned, and still there" for file in pruned}
        kinds |= dict.fromkeys(half, "half pruned")
        found += [
            _leftover(kind, f"{folder}/{path}", [files[path]], remote=not root.local)
            for path, kind in kinds.items()
            if path in files
        ]
    return found


def set_aside(root: StoreRoot, before: datetime) -> list[Leftover]:
    return [
        leftover
        for (stage, name), files in list_folders(root, root.join("damaged")).items()
        if MOVED_NAME.fullmatch(name)
        for leftover in _if_old(
            "set aside as damaged", root.join("damaged", stage, name), files, before, remote=not root.local
        )
    ]


def local_leftovers(
    root: StoreRoot, store: ArtifactStore, runs: Sequence[str], ids: set[str], before: datetime
) -> list[Leftover]:
    """Leftovers on this machine that are older than `before`: in a local store, or in the scratch folder of
    an object store."""
    scratch = root.scratch
    left = [path for path in store.left_behind() if _touched(path) < before]
    found = [
        _of_folder(
            "staging of a dead process" if path.parent == store.staging_folder else "half deleted", path
        )
        for path in left
    ]
    memory = [path for path in _children(scratch / "memory") if path.name not in runs and _is_table(path)]
    found += [
        _of_folder("memory table of no run" if is_run_name(path.name) else "half deleted", path)
        for path in memory
        if _touched(path) < before
    ]
    if not root.local:
        gone = [path for path in store.unused_copies() if path.name.partition("-")[0] not in ids]
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


def _is_table(path: Path) -> bool:
    """Whether a folder is a run's table of the memory, maybe one that was being removed, and has nothing else
    in it."""
    is_named_so = is_run_name(path.name) or _TEMPORARY.fullmatch(path.name) is not None
    return is_named_so and path.is_dir() and {each.name for each in path.iterdir()} <= {_TABLE}


def _touched(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _of_folder(kind: LeftoverKind, path: Path) -> Leftover:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return _of_files(kind, str(path), [local_file(file) for file in files], remote=False)


def _leftover(kind: LeftoverKind, path: str, files: Iterable[Mapping[str, Any]], *, remote: bool) -> Leftover:
    return _of_files(kind, path, [listed_file(info) for info in files], remote=remote)


def _of_files(kind: LeftoverKind, path: str, files: Sequence[StoredFile], *, remote: bool) -> Leftover:
    return Leftover(kind, path, len(files), freed_bytes({path: files})[path], remote)


def _if_old(
    kind: LeftoverKind, path: str, files: Mapping[str, dict[str, Any]], before: datetime, *, remote: bool
) -> list[Leftover]:
    """Files as one leftover if there are some, and all are older than `before`."""
    old = bool(files) and max(map(_modified, files.values())) < before
    return [_leftover(kind, path, files.values(), remote=remote)] if old else []


def _modified(info: Mapping[str, Any]) -> datetime:
    """When a file was written, by fsspec's information about a local file or an object."""
    for name in ("mtime", "LastModified", "updated", "created"):
        moment = info.get(name)
        if isinstance(moment, int | float):
            return datetime.fromtimestamp(moment, UTC)
        if isinstance(moment, datetime):
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # A file of unknown age must not be deleted, so it counts as new.
    return datetime.max.replace(tzinfo=UTC)
