"""Files of an object store's artifacts on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from storage.artifacts.integrity import file_problems
from storage.artifacts.layout import ArtifactPlaces
from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.staging import StagingFolder
from storage.filesystem import publish_folder, store_errors


def local_copy(places: ArtifactPlaces, manifest: Manifest, present: Sequence[FileEntry]) -> Path:
    """The artifact's folder; of an object store a download, kept for later processes.

    Only `present` files are looked for. One that the store lacks is left out: who checks the folder names it.
    """
    source = places.files_of(manifest)
    if places.root.local:
        return Path(source)
    folder = places.download(manifest.artifact_id)
    if folder.is_dir() and not file_problems(present, folder):
        return folder
    forget_download(places, manifest.artifact_id)
    staging = StagingFolder(places.staging)
    try:
        with store_errors("download", source):
            for entry in present:
                local = staging.path / entry.path
                local.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):
                    places.root.fs.get_file(f"{source}/{entry.path}", str(local))
            folder.parent.mkdir(parents=True, exist_ok=True)
            publish_folder(staging.path, folder)
    finally:
        staging.release()
    return folder


def forget_download(places: ArtifactPlaces, artifact_id: str) -> None:
    """Remove this machine's copy, so that what the store holds now counts. A local store has none."""
    if not places.root.local:
        shutil.rmtree(places.download(artifact_id), ignore_errors=True)
