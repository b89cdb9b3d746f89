"""Files of an object store's artifacts, to and from this machine: large ones in parts, several at a time."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.artifacts.cache import LocalCache
from storage.artifacts.layout import StagingFolder, StoreLayout, upload_folder
from storage.artifacts.manifest import FileEntry, Manifest, Problems, file_problems, require_whole
from storage.errors import store_errors
from storage.filesystem import StoreRoot

PART_BYTES = 16 * 2**20
"""Length in bytes of every part of a file but the last."""
_MOST_PARTS = 10_000
"""Most parts of one upload to S3."""


@dataclass(frozen=True)
class Part:
    """Bytes `start` (included) to `end` (excluded) of a file."""

    entry: FileEntry
    start: int
    end: int


def parts_of(entry: FileEntry) -> Iterator[Part]:
    """The parts of a file, in order; an empty file has none."""
    for start in range(0, entry.bytes, PART_BYTES):
        yield Part(entry, start, min(start + PART_BYTES, entry.bytes))


def upload(
    root: StoreRoot, folder: Path, entries: Sequence[FileEntry], target: str, connections: int
) -> None:
    """Send files of a local folder to a folder of an object store. Raises what fsspec raises.

    Small files are sent at the same time; a large one takes all connections for its parts, if the store can
    assemble parts (S3).
    """

    def send(entry: FileEntry, **options: int) -> None:
        root.fs.put_file(str(folder / entry.path), f"{target}/{entry.path}", **options)

    _all_of(send, [entry for entry in entries if entry.bytes <= PART_BYTES], connections)
    for entry in entries:
        if entry.bytes > PART_BYTES:
            send(entry, **_multipart(root, entry.bytes, connections))


def _multipart(root: StoreRoot, size: int, connections: int) -> dict[str, int]:
    """The client's options for the parts of one upload; only S3's client has any."""
    if "s3" not in root.fs.protocol:
        return {}
    return {
        "chunksize": max(PART_BYTES, math.ceil(size / _MOST_PARTS)),
        "max_concurrency": connections,
    }


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
    with StagingFolder(layout.staging) as staging:
        _download(layout, cache, manifest, present, staging.path)
        yield staging.path
        cache.put(copy_name(manifest), copy_bytes(present), staging.path)


def _copy(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, entries: Sequence[FileEntry], name: str
) -> Path:
    return cache.get(
        name,
        copy_bytes(entries),
        fetch=lambda folder: _download(layout, cache, manifest, entries, folder),
        whole=lambda folder: not file_problems(entries, folder),
    )


def _download(
    layout: StoreLayout, cache: LocalCache, manifest: Manifest, entries: Sequence[FileEntry], folder: Path
) -> None:
    """Fetch files of an artifact into a local folder; one that arrives damaged is fetched a second time.

    Raises DamagedArtifact, which names the files, if some are missing, or hold other bytes both times.
    """
    source, wanted = layout.files_of(manifest), entries
    with store_errors("download", source):
        problems = _length_problems(layout.root, source, entries)
        for _ in range(0 if problems else 2):
            _fetch(layout.root, source, wanted, folder, cache.settings.connections)
            wanted = [entry for entry in wanted if file_problems([entry], folder)]
    require_whole(manifest, problems or file_problems(wanted, folder, source))


def _length_problems(root: StoreRoot, source: str, entries: Sequence[FileEntry]) -> Problems:
    """Files that the store lacks or has with another length."""
    sizes = _sizes(root, source, entries)
    return [
        f"{source}/{entry.path} is missing"
        if entry.path not in sizes
        else f"{source}/{entry.path} has {sizes[entry.path]} bytes, the manifest says {entry.bytes}"
        for entry in entries
        if sizes.get(entry.path) != entry.bytes
    ]


def _sizes(root: StoreRoot, source: str, entries: Sequence[FileEntry]) -> dict[str, int]:
    """Length in bytes of each file that the store has, by one listing, or one request for a single file."""
    if len(entries) == 1:
        try:
            return {entries[0].path: int(root.fs.info(f"{source}/{entries[0].path}")["size"])}
        except FileNotFoundError:
            return {}
    prefix = f"{source.strip('/')}/"
    found: dict[str, dict[str, Any]] = root.fs.find(source, detail=True)
    return {path.lstrip("/").removeprefix(prefix): int(info["size"]) for path, info in found.items()}


def _fetch(
    root: StoreRoot, source: str, entries: Sequence[FileEntry], folder: Path, connections: int
) -> None:
    """Fetch files into a local folder, in parts. Raises what fsspec raises."""

    def fetch(part: Part) -> None:
        content = root.fs.cat_file(f"{source}/{part.entry.path}", start=part.start, end=part.end)
        with (folder / part.entry.path).open("r+b") as file:
            file.seek(part.start)
            file.write(content)

    for entry in entries:
        local = folder / entry.path
        local.parent.mkdir(parents=True, exist_ok=True)
        local.touch()
        os.truncate(local, entry.bytes)
    _all_of(fetch, [part for entry in entries for part in parts_of(entry)], connections)


def _all_of(work: Callable[[Any], None], items: Iterable[Any], connections: int) -> None:
    """Do `work` for each item. After an error no further item is begun."""
    pool = ThreadPoolExecutor(connections, thread_name_prefix="transfer")
    try:
        list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
