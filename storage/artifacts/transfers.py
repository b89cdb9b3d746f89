"""Transfers of an artifact's files to and from an object store: large files in parts, several at a time.

Each part is checked when it arrives: its length, and its digest if the file has several parts. Callers
compare whole files with the manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from storage.artifacts.integrity import Problems
from storage.artifacts.manifest import FileEntry
from storage.artifacts.sealing import SCHEMA_VERSION, open_document, seal
from storage.errors import DamagedArtifact
from storage.filesystem import StoreRoot, read_bytes

PARTS = ".parts.json"
"""Name of the object, in the folder of an upload, with the digests of the parts of large files."""
PART_BYTES = 16 * 2**20
"""Length in bytes of every part of a file but the last."""

PartDigests = Mapping[str, Sequence[str]]
"""Name of a file of more than one part -> SHA-256 of each part."""


@dataclass(frozen=True)
class Part:
    """Bytes `start` (included) to `end` (excluded) of a file; `number` begins at 0."""

    entry: FileEntry
    number: int
    start: int
    end: int

    @property
    def title(self) -> str:
        """Its name in messages: `bytes 16,777,216 to 33,554,431 (part 2 of 3) of weights`; for the only part
        of a file, the file's name."""
        count = part_count(self.entry.bytes)
        if count == 1:
            return self.entry.path
        place = f"bytes {self.start:,} to {self.end - 1:,} (part {self.number + 1} of {count})"
        return f"{place} of {self.entry.path}"


def part_count(size: int) -> int:
    """How many parts a file of `size` bytes has; an empty file has one."""
    return max(1, -(-size // PART_BYTES))


def parts_of(entry: FileEntry) -> Iterator[Part]:
    """The parts of a file, in order."""
    for number in range(part_count(entry.bytes)):
        start = number * PART_BYTES
        yield Part(entry, number, start, min(start + PART_BYTES, entry.bytes))


def digest_parts(folder: Path, entries: Sequence[FileEntry]) -> dict[str, list[str]]:
    """SHA-256 of each part, for those files of a folder that have more than one part."""
    digests: dict[str, list[str]] = {}
    for entry in entries:
        if part_count(entry.bytes) > 1:
            of_file = digests[entry.path] = []
            with (folder / entry.path).open("rb") as file:
                while chunk := file.read(PART_BYTES):
                    of_file.append(hashlib.sha256(chunk).hexdigest())
    return digests


def parts_document(digests: PartDigests) -> bytes:
    """The content of `.parts.json`, sealed."""
    document = {"schema_version": SCHEMA_VERSION, "part_bytes": PART_BYTES, "files": digests}
    return seal(json.dumps(document, indent=1))


def parse_parts(content: bytes | None, where: str) -> PartDigests:
    """The digests in a `.parts.json`; none if there is no file, or if its parts have another length.

    Raises DamagedArtifact for a changed file.
    """
    if content is None:
        return {}
    document = open_document(content, where)
    if document is None:
        raise DamagedArtifact(f"{where} was changed after it was written.")
    found = json.loads(document)
    return found["files"] if found["part_bytes"] == PART_BYTES else {}


T = TypeVar("T")

_MOST_PARTS = 10_000
"""Most parts of one upload to S3."""


def upload(
    root: StoreRoot, folder: Path, entries: Sequence[FileEntry], target: str, connections: int
) -> None:
    """Send files of a local folder to a folder of an object store. Raises what fsspec raises.

    Small files are sent at the same time; a large one takes all connections for its parts, if the store can
    assemble parts (S3).
    """
    small = [entry for entry in entries if part_count(entry.bytes) == 1]
    _all_of(
        lambda entry: root.fs.put_file(str(folder / entry.path), f"{target}/{entry.path}"), small, connections
    )
    for entry in entries:
        if part_count(entry.bytes) > 1:
            options = _multipart(root, entry.bytes, connections)
            root.fs.put_file(str(folder / entry.path), f"{target}/{entry.path}", **options)
    if digests := digest_parts(folder, entries):
        root.fs.pipe_file(f"{target}/{PARTS}", parts_document(digests))


def download(
    root: StoreRoot, source: str, entries: Sequence[FileEntry], folder: Path, connections: int
) -> Problems:
    """Fetch files from a folder of an object store into a local folder; returns the problems found.

    A file that is missing or has another length is reported and not fetched. A part that arrives with other
    bytes than were uploaded is fetched a second time. Raises what fsspec raises, and DamagedArtifact if the
    list of parts was changed.
    """
    sizes = _sizes(root, source, entries)
    problems = [
        f"{source}/{entry.path} is missing"
        if entry.path not in sizes
        else f"{source}/{entry.path} has {sizes[entry.path]} bytes, the manifest says {entry.bytes}"
        for entry in entries
        if sizes.get(entry.path) != entry.bytes
    ]
    whole = [entry for entry in entries if sizes.get(entry.path) == entry.bytes]
    digests: PartDigests = {}
    if any(part_count(entry.bytes) > 1 for entry in whole):
        digests = parse_parts(read_bytes(root, f"{source}/{PARTS}"), f"{source}/{PARTS}")
    for entry in whole:
        local = folder / entry.path
        local.parent.mkdir(parents=True, exist_ok=True)
        local.touch()
        os.truncate(local, entry.bytes)
    parts = [part for entry in whole for part in parts_of(entry) if part.end > part.start]
    found = _all_of(lambda part: _fetch(root, source, part, folder, digests), parts, connections)
    return problems + [problem for problem in found if problem]


def _fetch(root: StoreRoot, source: str, part: Part, folder: Path, digests: PartDigests) -> str:
    """Fetch one part and write it into its file; returns the problem with it, empty if there is none."""
    of_file = digests.get(part.entry.path)
    expected = None if of_file is None else of_file[part.number]
    problem = ""
    for _ in range(2):
        content: bytes = root.fs.cat_file(f"{source}/{part.entry.path}", start=part.start, end=part.end)
        length, wanted = len(content), part.end - part.start
        if length != wanted:
            problem = f"{source}: {part.title} came with {length} bytes instead of {wanted}"
            continue
        found = hashlib.sha256(content).hexdigest()
        if expected is not None and found != expected:
            problem = f"{source}: {part.title} has SHA-256 {found}, when it was uploaded it had {expected}"
            continue
        descriptor = os.open(folder / part.entry.path, os.O_WRONLY)
        try:
            written = 0
            while written < length:
                written += os.pwrite(descriptor, memoryview(content)[written:], part.start + written)
        finally:
            os.close(descriptor)
        return ""
    return problem


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


def _multipart(root: StoreRoot, size: int, connections: int) -> dict[str, int]:
    """The client's options for the parts of one upload; only S3's client has any."""
    if "s3" not in root.fs.protocol:
        return {}
    return {
        "chunksize": max(PART_BYTES, math.ceil(size / _MOST_PARTS)),
        "max_concurrency": connections,
    }


def _all_of(work: Callable[[Any], T], items: Iterable[Any], connections: int) -> list[T]:
    """What `work` returns for each item. After an error no further item is begun."""
    pool = ThreadPoolExecutor(connections, thread_name_prefix="transfer")
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
