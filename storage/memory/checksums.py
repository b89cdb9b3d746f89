"""A list of the checked files of a memory's table with their digests, to detect any change.

The table is made from committed artifacts and holds nothing else. Comparing all its rows with the artifacts
takes time, so this is done once. From then on its files, which LanceDB never changes, are compared with this
list.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from storage.artifacts.sealing import Record
from storage.errors import store_errors
from storage.filesystem import open_to_write, sha256_file

# Tags are checked on their own, transactions are not read again, and each version rewrites the hint.
VERSION_HINT = "latest_version_hint.json"
_LEFT_OUT = {"_refs", "_transactions", VERSION_HINT}


class CheckedVersion(Record):
    """A memory version whose rows were compared with its artifacts."""

    table_version: int
    rows: int


class _Line(Record):
    layout: Literal[5]
    """The layout of the table's columns. A table of another layout is rebuilt."""
    versions: dict[str, CheckedVersion]
    files: dict[str, str]


class IndexChecksums:
    """Digests of the files of the table in `folder`, kept in a file beside it; each addition is one line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = checksums_path(folder)
        self._files: dict[str, str] = {}
        self._size = 0
        self.versions: dict[str, CheckedVersion] = {}
        """Memory versions whose rows were checked."""

    def load(self) -> None:
        """Trust the list if every file of the table still has its digest; otherwise trust nothing.

        Does nothing unless the list has grown or shrunk since the last time.
        """
        size = self._path.stat().st_size if self._path.exists() else 0
        if size == self._size:
            return
        self._files, self.versions, self._size = {}, {}, size
        if not size:  # another process has removed the table
            return
        files: dict[str, str] = {}
        versions: dict[str, CheckedVersion] = {}
        with store_errors("read", self._path):
            for text in self._path.read_bytes().splitlines():
                try:
                    line = _Line.model_validate_json(text)
                except ValidationError:  # cut short by a kill
                    return
                files |= line.files
                versions |= line.versions
            with ThreadPoolExecutor() as threads:  # the files of a million entries are gigabytes
                if not all(threads.map(self._has_digest, files, files.values())):
                    return
        self._files, self.versions = files, versions

    def add(self, versions: Mapping[str, CheckedVersion]) -> None:
        """Record versions that were checked, and the table's files that are new since the last time."""
        with store_errors("write", self._path):
            new = {
                name: sha256_file(self._folder / name)
                for name in sorted(_file_names(self._folder))
                if name not in self._files
            }
            line = _Line(layout=5, versions=dict(versions), files=new).model_dump_json() + "\n"
            # If no version was trusted, the lines in the file are not trusted either: overwrite them.
            with open_to_write(self._path, "ab" if self.versions else "wb") as file:
                file.write(line.encode("utf-8"))
                self._size = file.tell()
        self._files |= new
        self.versions |= versions

    def changed(self) -> list[str]:
        """Listed files of the table that are missing or hold other bytes, sorted; also those that only older
        versions refer to. A line that a kill cut short lists nothing."""
        files: dict[str, str] = {}
        with store_errors("read", self._path):
            for text in self._path.read_bytes().splitlines() if self._path.exists() else ():
                with suppress(ValidationError):
                    files |= _Line.model_validate_json(text).files
            return sorted(name for name, digest in files.items() if not self._has_digest(name, digest))

    def _has_digest(self, name: str, digest: str) -> bool:
        path = self._folder / name
        return path.is_file() and sha256_file(path) == digest

    def drop(self) -> None:
        """Trust nothing any more."""
        self._files, self.versions, self._size = {}, {}, 0
        with store_errors("remove", self._path):
            self._path.unlink(missing_ok=True)


def checksums_path(folder: Path) -> Path:
    """The file with the digests of the table in `folder`."""
    return folder.with_name(folder.name + ".checksums.jsonl")


def _file_names(folder: Path, prefix: str = "") -> Iterator[str]:
    """Names of the files under a folder, with `/`."""
    with os.scandir(folder / prefix) as entries:
        for entry in entries:
            if entry.name in _LEFT_OUT:
                continue
            if entry.is_dir():
                yield from _file_names(folder, f"{prefix}{entry.name}/")
            else:
                yield f"{prefix}{entry.name}"
