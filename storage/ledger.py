"""The append-only ledger of a run: one JSON line for each artifact that a stage gave it."""

from __future__ import annotations

import os
import threading
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.errors import StoreError
from storage.filesystem import StoreRoot, read_bytes, store_errors, sync_folder


class LedgerEntry(BaseModel):
    """One line: a stage gave this artifact. `reused` says that it was there before it was asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iteration: int | None
    stage: str
    key: str
    artifact_id: str
    reused: bool
    seconds: float
    recorded_at: datetime


class Ledger:
    """A ledger file. A line counts once it ends in a newline: what a kill cut short is ignored, and cut
    off before the next line is written. Object stores cannot append, so there the file is written anew."""

    def __init__(self, root: StoreRoot, path: str) -> None:
        self._root = root
        self._path = path
        self._append_lock = threading.Lock()

    def append(self, entry: LedgerEntry) -> None:
        """Add a line; it is on disk when this returns. Raises StoreError when it cannot be written."""
        line = (entry.model_dump_json() + "\n").encode("utf-8")
        with self._append_lock, store_errors("write", self._path):
            if self._root.local:
                _append_line(Path(self._path), line)
            else:
                self._root.fs.pipe_file(self._path, self._whole_lines() + line)

    def read(self) -> list[LedgerEntry]:
        """All whole lines, oldest first. Raises StoreError, naming the line, for one that is not an entry."""
        entries = []
        for number, line in enumerate(self._whole_lines().splitlines(), start=1):
            try:
                entries.append(LedgerEntry.model_validate_json(line))
            except ValidationError as error:
                raise StoreError(
                    f"{self._path}, line {number} is not a ledger entry ({error.error_count()} errors). "
                    "Remove the line: artifacts are found by their recipe, so `train` records them again."
                ) from error
        return entries

    def _whole_lines(self) -> bytes:
        content = read_bytes(self._root, self._path) or b""
        return content[: content.rfind(b"\n") + 1]


def _append_line(path: Path, line: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    created = not path.exists()
    with path.open("ab+") as file:
        file.seek(0)
        torn = file.read()
        whole = torn.rfind(b"\n") + 1
        if whole < len(torn):
            file.truncate(whole)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    if created:
        sync_folder(path.parent)
