"""Parts of large files in an object store, each with its own digest, so that a damaged part can be named.

The digests lie beside the uploaded files in `.parts.json`, which is sealed. A file of one part has no entry
there, since the manifest has the digest of the whole file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts.manifest import FileEntry
from storage.artifacts.sealing import SCHEMA_VERSION, open_document, seal
from storage.errors import DamagedArtifact

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
