"""Files of a store that belong to nothing, such as those that killed processes left behind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from storage.artifacts.artifact import KEPT_ROWS, is_half_record
from storage.artifacts.layout import TRASH, abandoned, upload_folder
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.filesystem import StoreRoot, store_errors

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

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")


@dataclass(frozen=True)
class Leftover:
    """Files that belong to nothing. `path` is fsspec's path in the store if `remote`, else a local path."""

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


def without_manifest(
    root: StoreRoot, files: Mapping[str, dict[str, Any]], manifest: Manifest | None
) -> dict[str, dict[str, Any]]:
    """Files of an artifact's folder that belong to no manifest.

    For a local artifact with a manifest this is empty: it was published whole, and `lineage verify` reports
    files that were added later.
    """
    if manifest is None:
        return dict(files)
    if root.local:
        return {}
    own = f"{upload_folder(manifest)}/"
    return {path: info for path, info in files.items() if "/" in path and not path.startswith(own)}


def stray_files(
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


def pruned_yet_there(
    root: StoreRoot, store: ArtifactStore, manifest: Manifest, files: Mapping[str, dict[str, Any]]
) -> list[Leftover]:
    """Files that count as pruned but that a kill left in place."""
    folder = root.join("artifacts", manifest.stage, manifest.artifact_id)
    own = "" if root.local else f"{upload_folder(manifest)}/"
    return [
        _leftover("pruned, and still there", f"{folder}/{path}", [files[path]], remote=not root.local)
        for path in (own + file.path for file in store.pruned(manifest).files)
        if path in files
    ]


def half_pruned(
    root: StoreRoot, store: ArtifactStore, manifest: Manifest, files: Mapping[str, dict[str, Any]]
) -> list[Leftover]:
    """Files of kept rows that a killed pruning left without a record, and half-written records."""
    folder = root.join("artifacts", manifest.stage, manifest.artifact_id)
    own = "" if root.local else f"{upload_folder(manifest)}/"
    found = [path for path in files if path.startswith(f"{own}{KEPT_ROWS}/") or is_half_record(path)]
    if not found:
        return []
    recorded = {f"{own}{file.kept.path}" for file in store.pruned(manifest).files if file.kept is not None}
    return [
        _leftover("half pruned", f"{folder}/{path}", [files[path]], remote=not root.local)
        for path in found
        if path not in recorded
    ]


def set_aside(root: StoreRoot, before: datetime) -> list[Leftover]:
    return [
        _leftover(
            "set aside as damaged", root.join("damaged", stage, name), files.values(), remote=not root.local
        )
        for (stage, name), files in list_folders(root, root.join("damaged")).items()
        if max(map(modified, files.values())) < before
    ]


def local_leftovers(
    root: StoreRoot, store: ArtifactStore, runs: Sequence[str], ids: set[str], before: datetime
) -> list[Leftover]:
    """Leftovers on this machine: in a local store, or in the scratch folder of an object store."""
    scratch = root.scratch
    found = [_of_folder("staging of a dead process", path) for path in abandoned(store.staging_folder)]
    found += [_of_folder("half deleted", path) for path in _children(scratch / TRASH)]
    memory = [path for path in _children(scratch / "memory") if path.is_dir() and path.name not in runs]
    found += [_of_folder("memory table of no run", path) for path in memory if _touched(path) < before]
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


def _touched(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _of_folder(kind: LeftoverKind, path: Path) -> Leftover:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return Leftover(kind, str(path), len(files), sum(file.stat().st_size for file in files))


def _leftover(kind: LeftoverKind, path: str, files: Iterable[Mapping[str, Any]], *, remote: bool) -> Leftover:
    sizes = [int(info["size"]) for info in files]
    return Leftover(kind, path, len(sizes), sum(sizes), remote)


def modified(info: Mapping[str, Any]) -> datetime:
    """When a file was written, by fsspec's information about a local file or an object."""
    if "mtime" in info:
        return datetime.fromtimestamp(info["mtime"], UTC)
    for name in ("LastModified", "updated", "created"):
        if isinstance(info.get(name), datetime):
            moment: datetime = info[name]
            return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    # A file of unknown age must not be deleted, so it counts as new.
    return datetime.max.replace(tzinfo=UTC)
