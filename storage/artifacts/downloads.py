"""Files of an object store's artifacts on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage.artifacts.cache import LocalCache
from storage.artifacts.integrity import file_problems
from storage.artifacts.layout import StoreLayout, upload_folder
from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.staging import StagingFolder
from storage.artifacts.transfers import download
from storage.errors import DamagedArtifact
from storage.filesystem import store_errors


def copy_name(manifest: Manifest) -> str:
    """The name of an artifact's copy: its id and a digest of its files."""
    return f"{manifest.artifact_id}-{upload_folder(manifest)}"


def copy_bytes(entries: Sequence[FileEntry]) -> int:
    """Total bytes of these files."""
    return sum(entry.bytes for entry in entries)


def local_copy(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, present: Sequence[FileEntry]
) -> Path:
    """The local folder of an object store's artifact, verified by its hashes and kept for later processes.

    Only the `present` files are fetched. Raises DamagedArtifact if one of them is missing in the store, or
    does not hold the bytes that the manifest names.
    """
    return _copy(layout, cache, manifest, present, copy_name(manifest))


def local_file(layout: StoreLayout, cache: LocalCache, manifest: Manifest, entry: FileEntry) -> Path:
    """The local folder that holds one file of an object store's artifact; only that file is downloaded.
    Raises DamagedArtifact as `local_copy` does."""
    whole = cache.find(copy_name(manifest))
    if whole is not None and not file_problems([entry], whole):
        return whole
    return _copy(layout, cache, manifest, [entry], f"{manifest.artifact_id}-{entry.sha256[:16]}")


@contextmanager
def fresh_copy(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, present: Sequence[FileEntry]
) -> Iterator[Path]:
    """A folder with an artifact's files, downloaded again from an object store and verified by their hashes.

    If this machine has no copy, the folder is kept as one. Raises DamagedArtifact as `local_copy` does.
    """
    staging = StagingFolder(layout.staging)
    try:
        _fetch(layout, cache, manifest, present, staging.path)
        yield staging.path
        cache.put(copy_name(manifest), copy_bytes(present), staging.path)
    finally:
        staging.release()


def _copy(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, entries: Sequence[FileEntry], name: str
) -> Path:
    return cache.get(
        name,
        copy_bytes(entries),
        fetch=lambda folder: _fetch(layout, cache, manifest, entries, folder),
        whole=lambda folder: not file_problems(entries, folder),
    )


def _fetch(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, entries: Sequence[FileEntry], folder: Path
) -> None:
    source = layout.files_of(manifest)
    try:
        with store_errors("download", source):
            problems = download(layout.root, source, entries, folder, cache.settings.connections)
    except DamagedArtifact as damage:
        problems = [str(damage).rstrip(".")]
    problems = problems or file_problems(entries, folder, source)
    if problems:
        found = "; ".join(problems)
        raise DamagedArtifact(f"artifact {manifest.artifact_id} ({manifest.stage}) is damaged: {found}.")
