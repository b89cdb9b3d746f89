"""The append-only ledger of a run: a JSON line, with a digest, for each artifact that a stage gave."""

from __future__ import annotations

import os
import re
import threading
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.sealing import seal, unseal
from storage.errors import StoreError
from storage.filesystem import StoreRoot, list_names, make_folder, read_bytes, store_errors, sync_folder
from storage.links import open_to_write

PART_LINES = 256
"""Most lines of one part of a ledger in an object store."""

_TAIL_BYTES = 4096


class LedgerEntry(BaseModel):
    """One line: a stage gave this artifact. `reused` says that the artifact was in the store already."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iteration: int | None
    stage: str
    kind: ArtifactKind
    key: str
    artifact_id: str
    reused: bool
    seconds: float
    recorded_at: datetime


class Ledger:
    """A ledger file. A line counts once it ends in a newline. A line that a kill cut short is ignored, and
    removed before the next line is written.

    Object stores cannot append, so there the ledger continues in `ledger.0001.jsonl`, `ledger.0002.jsonl`,
    ... and only the last part is rewritten. Either way the cost of a line does not grow with the ledger.
    """

    def __init__(self, root: StoreRoot, path: str) -> None:
        self._root = root
        self._path = path
        self._append_lock = threading.Lock()

    def append(self, entry: LedgerEntry) -> None:
        """Add a line; it is on disk when this returns. Raises StoreError when it cannot be written."""
        line = _line(entry)
        with self._append_lock, store_errors("write", self._path):
            if self._root.local:
                _append_line(Path(self._path), line)
            else:
                self._append_to_last_part(line)

    def read(self) -> list[LedgerEntry]:
        """All complete lines, the oldest first. Raises StoreError for a changed line, which it names."""
        entries = []
        for part in [self._path] if self._root.local else self._parts():
            for number, line in enumerate(self._whole_lines(part).split(b"\n")[:-1], start=1):
                entry = _entry(line)
                if entry is None:
                    raise StoreError(
                        f"{part}, line {number} is not a ledger entry as it was written. Put the file back "
                        "from a copy, or remove the line: `train --check` then finds its artifact and "
                        "records it again. Requests that were made by hand must be made again."
                    )
                entries.append(entry)
        return entries

    def _append_to_last_part(self, line: bytes) -> None:
        parts = self._parts()
        content = self._whole_lines(parts[-1])
        if content.count(b"\n") >= PART_LINES:
            self._root.fs.pipe_file(self._part(len(parts)), line)
        else:
            self._root.fs.pipe_file(parts[-1], content + line)

    def _parts(self) -> list[str]:
        """The ledger's files in an object store, in order; the first is listed even if it does not exist."""
        folder, name = self._path.rsplit("/", 1)
        numbered = re.compile(re.escape(PurePosixPath(name).stem) + r"\.\d{4,}\.jsonl")
        found = sum(1 for other in list_names(self._root, folder) if numbered.fullmatch(other))
        return [self._path, *(self._part(number) for number in range(1, found + 1))]

    def _part(self, number: int) -> str:
        return f"{self._path.removesuffix('.jsonl')}.{number:04d}.jsonl"

    def _whole_lines(self, path: str) -> bytes:
        content = read_bytes(self._root, path) or b""
        return content[: content.rfind(b"\n") + 1]


def _line(entry: LedgerEntry) -> bytes:
    return seal(entry.model_dump_json()) + b"\n"


def _entry(line: bytes) -> LedgerEntry | None:
    """The entry of a line; None if the line was changed."""
    content = unseal(line)
    if content is None:
        return None
    try:
        return LedgerEntry.model_validate_json(content)
    except ValidationError:
        return None


def _append_line(path: Path, line: bytes) -> None:
    make_folder(path.parent)
    created = not path.exists()
    with open_to_write(path, "ab+") as file:
        file.truncate(end_of_whole_lines(file))
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if created:
        sync_folder(path.parent)


def end_of_whole_lines(file: BinaryIO) -> int:
    """Offset in bytes of the end of the last complete line; searches backwards, without reading the whole
    file."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _TAIL_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
