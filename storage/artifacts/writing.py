"""Writing in a store: artifacts are published whole or not at all, completed, pruned and deleted.

In a local store an artifact is published by renaming its staging folder. In an object store its files are
uploaded to a folder named after their digests, so that two machines that make the same artifact do not mix
their files. The manifest is uploaded last, by a conditional write. Who removes something must know that
nothing needs it.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

from storage.artifacts.artifact import (
    KEPT_ROWS,
    NOT_OF_LINEAGE,
    PRUNED,
    Artifact,
    PrunedFile,
    PruneRecord,
    copy_rows,
)
from storage.artifacts.cache import LocalCache
from storage.artifacts.layout import StagingFolder, StoreLayout, is_being_written
from storage.artifacts.manifest import MANIFEST, MEASURED_TABLES, Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.transfers import copy_bytes, copy_name, upload
from storage.artifacts.uncommitted import Told, Writer, draft, hashed
from storage.errors import InputError, store_errors
from storage.filesystem import (
    WITHOUT_LINKS,
    make_folder,
    remove,
    replace_file,
    sha256_file,
    sync_folder,
    sync_tree,
    write_new,
)

_LOOK_SECONDS = 0.2


class Staging:
    """An artifact being written: put files under `path`, then `commit`.

    Leaving the `with` block without a commit discards it.

    Args:
        parent: the store's folder for artifacts that are being written.
        publish: makes a written folder the artifact of its manifest.
    """

    def __init__(
        self,
        parent: Path,
        publish: Callable[[Manifest, Path, str], Artifact],
        recipe: Recipe,
        writer: Writer,
    ) -> None:
        self._publish = publish
        self._recipe = recipe
        self._writer = writer
        self._started_at = datetime.now(UTC)
        self._folder = StagingFolder(parent)
        self.path = self._folder.path
        """The local folder for the artifact's files."""

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.release()

    def commit(self, *, unchanged_from: str = "", **told: Unpack[Told]) -> Artifact:
        """Publish what was written; if another writer was first, its artifact is returned instead.

        `unchanged_from` is that of `storage.artifacts.uncommitted.Draft`. Raises what `draft` raises, and
        StoreError when the store cannot be written.
        """
        written = draft(self._recipe, self.path, self._writer, self._started_at, unchanged_from, **told)
        return self._publish(hashed(written.manifest, self.path), self.path, unchanged_from)


def put_in_place(layout: StoreLayout, cache: LocalCache, manifest: Manifest, folder: Path) -> Path | None:
    """Give a written folder its place in the store; the local folder of the files.

    None if another writer was first, in the store or among this machine's copies: then the caller opens what
    is there. The folder is moved away, or left for the caller to discard.
    """
    content = manifest.document()
    target = layout.of(manifest.stage, manifest.artifact_id)
    layout.root.refuse_link(target)
    with store_errors("commit an artifact to", target):
        if layout.root.local:
            return Path(target) if _rename(layout, folder, Path(target), content) else None
        if not _upload(layout, cache, manifest, folder, content):
            return None
        return cache.put(copy_name(manifest), copy_bytes(manifest.files), folder)


def _rename(layout: StoreLayout, folder: Path, target: Path, content: bytes) -> bool:
    (folder / MANIFEST).write_bytes(content)
    while _lacks_manifest(target) and is_being_written(layout.staging, target.parent.name, target.name):
        time.sleep(_LOOK_SECONDS)
    if _lacks_manifest(target):
        aside = Path(layout.damaged(target.parent.name, target.name))
        layout.root.refuse_link(str(aside))
        aside.parent.mkdir(parents=True, exist_ok=True)
        target.rename(aside)
    return publish_folder(folder, target)


def _lacks_manifest(target: Path) -> bool:
    return target.exists() and not (target / MANIFEST).exists()


def publish_folder(folder: Path, target: Path) -> bool:
    """Move a written folder to its place; False, and nothing moved, if another folder is there already."""
    sync_tree(folder)
    make_folder(target.parent)
    try:
        folder.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    sync_folder(target.parent)
    return True


def _upload(layout: StoreLayout, cache: LocalCache, manifest: Manifest, folder: Path, content: bytes) -> bool:
    root = layout.root
    where = layout.of(manifest.stage, manifest.artifact_id, MANIFEST)
    if root.fs.exists(where):
        return False
    upload(root, folder, manifest.files, layout.files_of(manifest), cache.settings.connections)
    return write_new(root, where, content, unique=True)


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
            kept = copy_rows(folder / name, folder, f"{KEPT_ROWS}/{name}", without=NOT_OF_LINEAGE)
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
        with suppress(FileNotFoundError):  # Some artifacts have a manifest and no files.
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


def holds_same_files(one: Manifest, other: Manifest, *, measured: bool = True) -> bool:
    """Whether two manifests name the same files with the same bytes; without `measured`, those that hold
    measured times need only have as many rows."""

    def held(manifest: Manifest) -> set[tuple[str, str | int | None]]:
        return {
            (entry.path, entry.rows if not measured and entry.table in MEASURED_TABLES else entry.sha256)
            for entry in manifest.files
        }

    return held(one) == held(other)


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
                if error.errno in WITHOUT_LINKS:
                    return
                raise
            beside.replace(written)
