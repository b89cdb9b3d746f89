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
    staging = StagingFolder(layout.staging)
    try:
        with store_errors("download", source):
            for entry in present:
                local = staging.path / entry.path
                local.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    layout.root.fs.get_file(f"{source}/{entry.path}", str(local))
            folder.parent.mkdir(parents=True, exist_ok=True)
            publish_folder(staging.path, folder)
    finally:
        staging.release()
    return folder


def forget_download(layout: StoreLayout, artifact_id: str) -> None:
    """Remove this machine's copy, so that what the store holds now counts. A local store has none."""
    if not layout.root.local:
        shutil.rmtree(layout.download(artifact_id), ignore_errors=True)
