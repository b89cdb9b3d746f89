"""Removing artifacts, or some of their files, from a store; the caller must know that nothing needs them."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from storage.artifacts.artifact import (
    KEPT_ROWS,
    PRUNED,
    Artifact,
    PrunedFile,
    PruneRecord,
    keep_lineage_columns,
)
from storage.artifacts.cache import LocalCache
from storage.artifacts.layout import StoreLayout
from storage.artifacts.manifest import MANIFEST, Manifest
from storage.artifacts.transfers import upload
from storage.errors import InputError
from storage.filesystem import remove, replace_file, sha256_file, store_errors, sync_tree


def prune_files(layout: StoreLayout, artifact: Artifact, names: Sequence[str], reason: str) -> PruneRecord:
    """Remove files of an opened artifact and record that they were removed.

    The record is written first: files that a kill leaves behind count as pruned, and the next call removes
    them.

    Raises InputError for a name that the artifact does not have.
    """
    manifest, folder, root = artifact.manifest, artifact.present_folder, layout.root
    for name in ["", *(f"{KEPT_ROWS}/{name}" for name in names)]:
        root.refuse_link(f"{folder}/{name}".rstrip("/"))
    base = layout.files_of(manifest)
    files = list(artifact.pruned.files)
    now = datetime.now(UTC)
    for name in names:
        if artifact.pruned.of(name) is not None:
            continue
        artifact.path(name)
        entry = next(entry for entry in manifest.files if entry.path == name)
        kept = None
        if entry.table is not None:
            kept = keep_lineage_columns(folder / name, folder / KEPT_ROWS / name, f"{KEPT_ROWS}/{name}")
            if not root.local:
                with store_errors("write", base):
                    root.fs.put_file(str(folder / kept.path), f"{base}/{kept.path}")
        files.append(
            PrunedFile(
                path=name,
                sha256=entry.sha256,
                bytes=entry.bytes,
                pruned_at=now,
                reason=reason,
                kept=kept,
            )
        )
    record = PruneRecord(artifact_id=manifest.artifact_id, files=files)
    if root.local:
        sync_tree(folder)
    where = layout.of(manifest.stage, manifest.artifact_id, PRUNED)
    replace_file(root, where, record.document())
    for file in record.files:
        remove(root, f"{base}/{file.path}")
        (folder / file.path).unlink(missing_ok=True)
    return record


def delete(layout: StoreLayout, cache: LocalCache, manifest: Manifest) -> None:
    """Delete an artifact. It vanishes in one step, even if the deletion of its files is interrupted."""
    target = layout.of(manifest.stage, manifest.artifact_id)
    layout.root.refuse_link(target)
    with store_errors("remove", target):
        if layout.root.local:
            trash = layout.trash(manifest.artifact_id)
            trash.parent.mkdir(parents=True, exist_ok=True)
            Path(target).rename(trash)
            shutil.rmtree(trash)
            return
        remove(layout.root, f"{target}/{MANIFEST}")
        layout.root.fs.rm(target, recursive=True)
        cache.forget(manifest.artifact_id)


def set_aside(layout: StoreLayout, cache: LocalCache, artifact_id: str) -> None:
    """Move an artifact to `STORE/damaged/`. Raises InputError when there is no such artifact."""
    stage = next((stage for stage in layout.stages() if artifact_id in layout.ids(stage)), None)
    if stage is None:
        raise InputError(f"no artifact {artifact_id} in store {layout.root.uri}.")
    target = layout.damaged(stage, artifact_id)
    layout.root.refuse_link(layout.of(stage, artifact_id))
    layout.root.refuse_link(target)
    with store_errors("move a damaged artifact to", target):
        layout.root.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        layout.root.fs.mv(layout.of(stage, artifact_id), target, recursive=True)
    cache.forget(artifact_id)


def holds_same_files(one: Manifest, other: Manifest) -> bool:
    """Whether two manifests name the same files with the same bytes."""
    return {(entry.path, entry.sha256) for entry in one.files} == {
        (entry.path, entry.sha256) for entry in other.files
    }


def put_back(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, pruned: PruneRecord, folder: Path
) -> None:
    """Move the removed files of an artifact from a folder that holds all its files to their places; then
    remove the record that they were pruned.

    Until the record is removed, the files count as pruned: a kill leaves what the next collection removes.
    """
    base, root = layout.files_of(manifest), layout.root
    names = {file.path for file in pruned.files}
    with store_errors("write", base):
        if root.local:
            sync_tree(folder)
            for name in names:
                target = Path(base) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                (folder / name).replace(target)
            sync_tree(Path(base))
        else:
            entries = [entry for entry in manifest.files if entry.path in names]
            upload(root, folder, entries, base, cache.settings.connections)
    remove(root, layout.of(manifest.stage, manifest.artifact_id, PRUNED))
    for file in pruned.files:
        if file.kept is not None:
            remove(root, f"{base}/{file.kept.path}")


_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK})
"""Errors of a file system that has no hard links, or allows no more of them."""


def share_equal_files(folder: Path, manifest: Manifest, source: Artifact) -> None:
    """Replace files of a written folder by links to equal files, with the same names, of another artifact.

    The linked bytes are hashed again, so that no damage is taken over. If the file system has no links, the
    folder keeps its own files.
    """
    there = {(entry.path, entry.sha256) for entry in source.files if source.pruned.of(entry.path) is None}
    for entry in manifest.files:
        older, written = source.present_folder / entry.path, folder / entry.path
        if (entry.path, entry.sha256) not in there or sha256_file(older) != entry.sha256:
            continue
        beside = written.with_name(f".{written.name}.{secrets.token_hex(8)}")
        with store_errors("link", written):
            try:
                os.link(older, beside)
            except OSError as error:
                if error.errno in _WITHOUT_LINKS:
                    return
                raise
            beside.replace(written)
