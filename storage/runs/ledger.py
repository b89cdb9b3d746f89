"""The append-only ledger of a run: a JSON line, with a digest, for each artifact that a stage gave.

The lines are a chain: each names its run and the digest of the line before. A small file beside the ledger,
its head, names the digest of the newest line. So a line that is dropped, doubled, moved or of another run is
found, also the last one. The head is written after the line: a kill leaves it one line behind.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO

from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.sealing import Record, read_record, record_bytes, seal, unseal
from storage.errors import DamagedRecord, store_errors
from storage.filesystem import (
    StoreRoot,
    list_names,
    make_folder,
    open_to_write,
    read_bytes,
    remove,
    replace_file,
    sync_folder,
)

PART_LINES = 256
"""Most lines of one part of a ledger in an object store."""

_TAIL_BYTES = 4096
_COMPUTED = re.compile(rb'"artifact_id":"(\w+)","reused":false')
_SEAL_BYTES = 64


class LedgerEntry(Record):
    """One line: a stage gave this artifact. `reused` says that the artifact was in the store already."""

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

    def __init__(
        self, root: StoreRoot, path: str, run: str, begins_after: Callable[[], str] = lambda: ""
    ) -> None:
        """`begins_after` gives the seal that the first line names: of the line before it, in another ledger
        of the run; empty for none."""
        self._root = root
        self._path = path
        self._run = run
        self._begins_after = begins_after
        self._append_lock = threading.Lock()

    def append(self, entry: LedgerEntry) -> None:
        """Add a line; it is on disk when this returns. Raises StoreError when it cannot be written."""
        with self._append_lock, store_errors("write", self._path):
            line = self._append_line(entry) if self._root.local else self._append_to_last_part(entry)
            self._write_head(_seal_of(line))

    def read(self, known: set[str] | None = None) -> list[LedgerEntry]:
        """All complete lines, the oldest first.

        Raises DamagedRecord, which names a line, where lines were changed, or are missing, doubled, moved or
        of another run.

        Args:
            known: seals of the lines of the run's earlier ledgers, which the first line may follow; those of
                this ledger are added.
        """
        seals = set() if known is None else known
        # Read first: another process may add lines meanwhile, and writes the head after them.
        head = self._head()
        entries: list[LedgerEntry] = []
        previous = ""
        own: set[str] = set()
        for part, number, line in self._lines():
            written = _written(line)
            if written is None:
                raise self._damage(f"{part}, line {number} is not a ledger entry as it was written")
            if written.run != self._run:
                raise self._damage(f"{part}, line {number} is of run {written.run}")
            follows = written.previous == previous if own else written.previous in {"", *seals}
            if not follows:
                raise self._damage(
                    f"{part}, line {number} does not follow the line before it: lines are missing, doubled "
                    "or moved"
                )
            previous = _seal_of(line)
            own.add(previous)
            entries.append(written.entry)
        if head is not None and head not in own:
            raise self._damage(f"{self._path} lacks its last lines")
        if head is None and len(own) > 1:
            raise self._damage(f"{self._head_path} is missing")
        seals |= own
        return entries

    def last_seal(self) -> str:
        """The seal of the last line; empty without lines."""
        lines = self._lines()
        return _seal_of(lines[-1][2]) if lines else ""

    def readable(self) -> list[LedgerEntry]:
        """The entries of the run's own undamaged lines, each once. Lines that the chain connects are in its
        order; what begins where lines are missing is in the order of the file."""
        lines = [(_seal_of(line), _written(line)) for _, _, line in self._lines()]
        found = {name: each for name, each in lines if each is not None and each.run == self._run}
        after: dict[str, list[str]] = {}
        for name, each in found.items():
            after.setdefault(each.previous, []).append(name)
        ordered: list[LedgerEntry] = []
        waiting = [name for name, each in reversed(found.items()) if each.previous not in found]
        while waiting:
            name = waiting.pop()
            ordered.append(found[name].entry)
            waiting += reversed(after.get(name, []))
        return ordered

    def computed(self) -> set[str]:
        """Artifacts that lines say the run computed; nothing is checked, so that it is quick."""
        return {
            found.decode()
            for part in self._file_paths()
            for found in _COMPUTED.findall(self._whole_lines(part))
        }

    def rewrite(self, entries: Sequence[LedgerEntry]) -> None:
        """Replace the whole ledger by these entries. A kill leaves one that is damaged, or the new one."""
        lines: list[bytes] = []
        for entry in entries:
            lines.append(self._line(entry, _seal_of(lines[-1]) if lines else ""))
        size = max(1, len(lines)) if self._root.local else PART_LINES
        parts = [lines[start : start + size] for start in range(0, max(1, len(lines)), size)]
        for number, part in enumerate(parts):
            replace_file(self._root, self._part(number) if number else self._path, b"".join(part))
        for path in [] if self._root.local else self._parts()[len(parts) :]:
            remove(self._root, path)
        if lines:
            self._write_head(_seal_of(lines[-1]))
        else:
            remove(self._root, self._head_path)

    def files(self) -> list[str]:
        """Paths of the ledger's files and its head, as far as they exist."""
        paths = [*self._file_paths(), self._head_path]
        return [path for path in paths if self._root.fs.exists(path)]

    def _damage(self, what: str) -> DamagedRecord:
        return DamagedRecord(
            f"{what}. `erl-pipeline train CONFIG --name {self._run} --check` makes the ledger again from the "
            "lines that are whole and from the artifacts, and keeps the damaged file beside it."
        )

    @property
    def _head_path(self) -> str:
        return f"{self._path.removesuffix('.jsonl')}.head.json"

    def _head(self) -> str | None:
        """The seal that the head names; None without a head."""
        content = read_bytes(self._root, self._head_path)
        if content is None:
            return None
        try:
            return str(read_record(content, self._head_path)["seal_of_last_line"])
        except DamagedRecord as error:
            raise self._damage(f"{self._head_path} was changed after it was written") from error

    def _write_head(self, last: str) -> None:
        replace_file(self._root, self._head_path, record_bytes({"run": self._run, "seal_of_last_line": last}))

    def _line(self, entry: LedgerEntry, previous: str) -> bytes:
        written = {**entry.model_dump(mode="json"), "run": self._run, "previous": previous}
        return seal(json.dumps(written, ensure_ascii=False, separators=(",", ":"))) + b"\n"

    def _lines(self) -> list[tuple[str, int, bytes]]:
        """The whole lines, each with its file and its number there."""
        return [
            (part, number, line)
            for part in self._file_paths()
            for number, line in enumerate(self._whole_lines(part).splitlines(keepends=True), start=1)
        ]

    def _append_line(self, entry: LedgerEntry) -> bytes:
        path = Path(self._path)
        make_folder(path.parent)
        created = not path.exists()
        with open_to_write(path, "ab+") as file:
            end = end_of_whole_lines(file)
            file.truncate(end)
            file.seek(max(0, end - 2 * _SEAL_BYTES))
            line = self._line(entry, _seal_of(file.read()) if end else self._begins_after())
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if created:
            sync_folder(path.parent)
        return line

    def _append_to_last_part(self, entry: LedgerEntry) -> bytes:
        parts = self._parts()
        content = self._whole_lines(parts[-1])
        line = self._line(entry, _seal_of(content) if content else self._begins_after())
        if content.count(b"\n") >= PART_LINES:
            self._root.fs.pipe_file(self._part(len(parts)), line)
        else:
            self._root.fs.pipe_file(parts[-1], content + line)
        return line

    def _file_paths(self) -> list[str]:
        return [self._path] if self._root.local else self._parts()

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


@dataclass(frozen=True)
class _Written:
    run: str
    previous: str
    entry: LedgerEntry


def _written(line: bytes) -> _Written | None:
    """What a line says; None if the line was changed."""
    content = unseal(line.rstrip(b"\n"))
    if content is None:
        return None
    try:
        found = json.loads(content)
        return _Written(found.pop("run"), found.pop("previous"), LedgerEntry.model_validate(found))
    except (ValueError, KeyError):
        return None


def _seal_of(lines: bytes) -> str:
    """The seal at the end of the last line, which ends in a newline: `..."seal":"<64 characters>"}`."""
    return lines[-_SEAL_BYTES - 3 : -3].decode("ascii", "replace")


def end_of_whole_lines(file: IO[bytes]) -> int:
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


def latest_entries(recorded: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """The latest line of each (iteration, stage, key) in a ledger, in the order they were first recorded."""
    latest: dict[tuple[int | None, str, str], LedgerEntry] = {}
    for entry in recorded:
        latest[entry.iteration, entry.stage, entry.key] = entry
    return list(latest.values())
