"""Files of an object store's artifacts on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from storage.artifacts.integrity import file_problems
from storage.artifacts.layout import StoreLayout
from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.staging import StagingFolder
from storage.filesystem import publish_folder, store_errors


def local_copy(layout: StoreLayout, manifest: Manifest, present: Sequence[FileEntry]) -> Path:
    """The artifact's folder; of an object store a download, kept for later processes.

    Only `present` files are looked for. One that the store lacks is left out: who checks the folder names it.
    """
    source = layout.files_of(manifest)
    if layout.root.local:
        return Path(source)
    folder = layout.download(manifest.artifact_id)
    if folder.is_dir() and not file_problems(present, folder):
        return folder
    forget_download(layout, manifest.artifact_id)
    _download(layout, source, present, folder)
    return folder


def local_file(layout: StoreLayout, manifest: Manifest, entry: FileEntry) -> Path:
    """The folder in which one file of an artifact lies; of an object store that file alone is downloaded."""
    source = layout.files_of(manifest)
    if layout.root.local:
        return Path(source)
    whole = layout.download(manifest.artifact_id)
    folder = whole if (whole / entry.path).exists() else Path(f"{whole}-{entry.sha256[:16]}")
    if not folder.is_dir() or file_problems([entry], folder):
        shutil.rmtree(folder, ignore_errors=True)
        _download(layout, source, [entry], folder)
    return folder


def _download(layout: StoreLayout, source: str, entries: Sequence[FileEntry], folder: Path) -> None:
    """Files of an object store's folder, put in place together."""
    staging = StagingFolder(layout.staging)
    try:
        with store_errors("download", source):
            for entry in entries:
                local = staging.path / entry.path
                local.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    layout.root.fs.get_file(f"{source}/{entry.path}", str(local))
            folder.parent.mkdir(parents=True, exist_ok=True)
            publish_folder(staging.path, folder)
    finally:
        staging.release()


def forget_download(layout: StoreLayout, artifact_id: str) -> None:
    """Remove this machine's copy, so that what the store holds now counts. A local store has none."""
    if not layout.root.local:
        kept = layout.download(artifact_id)
        for folder in kept.parent.glob(f"{artifact_id}*"):
            shutil.rmtree(folder, ignore_errors=True)
