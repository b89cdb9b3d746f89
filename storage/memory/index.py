"""The LanceDB table of a run's memory: a materialised index of committed deltas, which can always be rebuilt.

In the table each memory version is a tag. Memories of `INDEXED_ROWS` entries and more get indexes for
interactive searches; exact search does not use the vector index.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from storage.artifacts.store import ArtifactStore
from storage.errors import store_errors
from storage.filesystem import open_root, open_to_write, refuse_links_out
from storage.memory.chain import Delta, read_chain, read_delta_of, remaining
from storage.memory.checksums import VERSION_HINT, CheckedVersion, IndexChecksums, checksums_path
from storage.memory.entries import MEMORY_SCHEMA, entries_digest
from storage.memory.operations import apply, by_entry, removes
from storage.memory.search_indexes import (
    INDEX_COLUMNS,
    INDEXED_ROWS,
    keep_indexes,
    some_at_a_time,
    with_index_columns,
)
from storage.memory.versions import EMPTY_MEMORY

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import Table

_TABLE = "reflections"
_ASIDE = re.compile(r"\.(.+)\.[0-9a-f]{16}")
"""Name of a table's folder while it is being removed; the table's own name is in it."""
_MAX_FRAGMENTS, _FRAGMENTS_AT_MOST, _FRAGMENT_ROWS = 16, 256, 5000
_BATCH_ROWS = 4096
CACHE_BYTES = 768 * 2**20
"""What LanceDB may keep of indexes, and as much again of metadata; by its own default up to 7 GB."""
# What LanceDB raises for files that are gone, cut short or not its own.
_UNREADABLE = (RuntimeError, ValueError)
# Every version here is tagged, and LanceDB's cleaning raises an error for a tagged old version.
_KEEP_VERSIONS = timedelta(days=100 * 365)


def index_folder(store_uri: str, run_name: str) -> Path:
    """The folder of a run's table: in a local store, or on this machine for an object store."""
    return open_root(store_uri).scratch / "memory" / run_name


def tables_in(store_uri: str) -> list[str]:
    """Names of all tables of a store, also those of runs that were removed, and of those that a killed
    `MemoryIndex.discard` has left."""
    folder = index_folder(store_uri, "")
    found = list(folder.iterdir()) if folder.is_dir() else []
    found = [path for path in found if (path / f"{_TABLE}.lance").is_dir()]
    aside = (_ASIDE.fullmatch(path.name) for path in found)
    return sorted({path.name if left is None else left[1] for path, left in zip(found, aside, strict=True)})


def copy_index(source: Path, folder: Path) -> None:
    """Give `folder` the table of `source` as it is now, without changing that; nothing where there is none.

    The files are hard links where both folders are in one file system: LanceDB never changes a file. Another
    process may be adding to the table. Its checksums are copied first, so all the files that they name are
    there; what is newer is not trusted.
    """
    checksums = checksums_path(source)
    if not checksums.is_file() or not source.is_dir():
        return
    with store_errors("copy the memory index", source):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists():  # a copy that failed left it
            shutil.rmtree(folder)
        shutil.copyfile(checksums, checksums_path(folder))
        shutil.copytree(source, folder, copy_function=_link, ignore=shutil.ignore_patterns(VERSION_HINT))


def _link(source: str, path: str) -> None:
    try:
        os.link(source, path)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, path)


class MemoryIndex:
    """The table in `folder`. It is compared with the artifacts before its first use, and repaired if a kill
    or a deletion has left it incomplete."""

    def __init__(self, folder: Path, artifacts: ArtifactStore, cache_bytes: int = CACHE_BYTES) -> None:
        self._folder = folder
        self._artifacts = artifacts
        self._cache_bytes = cache_bytes
        self._checksums = IndexChecksums(folder)
        self._one_thread = threading.Lock()

    def open(self, version: str) -> Table | None:
        """The table as it is at a memory version; None while the memory has no entries.

        Raises InputError for an unknown version, DamagedArtifact when a delta of its chain is damaged,
        StoreError when the table cannot be written.
        """
        if version == EMPTY_MEMORY:
            return None
        read_delta_of(self._artifacts, version)
        with self._one_thread:
            self._checksums.load()
            if not self._is_checked(version):
                with self._one_process():
                    self._checksums.load()
                    if not self._is_checked(version) and not self._bring_up_to(version):
                        return None
            return self._pinned(version) if self._checksums.versions[version].rows else None

    def discard(self) -> None:
        """Remove the table with all its versions; it is made again when it is needed.

        It vanishes in one step. What a kill then leaves of it, the next call or a collection removes.
        """
        aside = f".{self._folder.name}."
        with self._one_process(), store_errors("remove", self._folder):
            self._checksums.drop()
            if self._folder.exists():
                self._folder.rename(self._folder.with_name(aside + secrets.token_hex(8)))
            for path in self._folder.parent.iterdir():
                if path.name.startswith(aside):
                    shutil.rmtree(path)

    def newest_of(self, versions: Sequence[str]) -> str | None:
        """The last of these versions that the table holds; `empty` if it holds none of them, None if there is
        no readable table."""
        for version in (*reversed(versions), EMPTY_MEMORY):
            if self._tag(version) is not None:
                return version
        return None

    @property
    def exists(self) -> bool:
        """Whether there is a table, readable or not."""
        return (self._folder / f"{_TABLE}.lance").is_dir()

    def holds(self, version: str) -> bool:
        """Whether the table has exactly the entries of a version, each once; changes nothing."""
        _, deltas = read_chain(self._artifacts, version)
        return not any(batch.num_rows for batch in remaining(deltas)) or self._holds(deltas)

    def _is_checked(self, version: str) -> bool:
        """Whether a version was checked, and its tag still names the table version that was checked."""
        known = self._checksums.versions.get(version)
        return known is not None and self._tag(version) == known.table_version

    def _bring_up_to(self, version: str) -> bool:
        """Make the table hold a version; False if its chain never added an entry, so it needs no table."""
        base, deltas = read_chain(self._artifacts, version, until=self._is_checked)
        if base != EMPTY_MEMORY:
            with suppress(*_UNREADABLE):
                self._checksums.add(self._extend(deltas, base, self._checksums.versions[base].rows))
                return True
            _, deltas = read_chain(self._artifacts, version)
        if not any(batch.num_rows for delta in deltas for batch in delta.batches()):
            return False
        if not self._holds(deltas):
            self._checksums.drop()
            self._create(deltas)
            self._extend(deltas, EMPTY_MEMORY, 0)
        table = self._pinned(version)
        self._checksums.add({version: CheckedVersion(table_version=table.version, rows=table.count_rows())})
        return True

    def _holds(self, deltas: Sequence[Delta]) -> bool:
        """Whether the table has the rows of a whole chain, by their digest."""
        if self._tag(deltas[-1].version) is None:
            return False
        try:
            table = self._pinned(deltas[-1].version)
            if table.schema.names != [*MEMORY_SCHEMA.names, *(column.name for column in INDEX_COLUMNS)]:
                return False  # made by an earlier version of this module
            held = entries_digest(table.search().select(MEMORY_SCHEMA.names).to_batches(_BATCH_ROWS))
        except _UNREADABLE:
            return False
        return held == entries_digest(remaining(deltas))

    def _extend(self, deltas: Sequence[Delta], base: str, rows: int) -> dict[str, CheckedVersion]:
        """Add deltas after the tagged version `base`, which has `rows` entries, and tag each.

        With the last one the table's files are compacted and its indexes updated, if needed.

        Raises RuntimeError when the table then has a wrong number of entries.
        """
        table = self._connection.open_table(_TABLE)
        at = self._tag(base)
        if table.version != at:
            table.checkout(at)
            table.restore()
        added: dict[str, CheckedVersion] = {}
        for delta in deltas:
            rows += _change(table, delta)
            if delta is deltas[-1]:
                _maintain(table)
            if self._tag(delta.version) is not None:  # left by an abandoned branch
                table.tags.delete(delta.version)
            table.tags.create(delta.version, table.version)
            added[delta.version] = CheckedVersion(table_version=table.version, rows=rows)
        if table.count_rows() != rows:
            raise RuntimeError(f"the table has {table.count_rows()} entries and should have {rows}")
        return added

    def _create(self, deltas: Sequence[Delta]) -> None:
        connection = self._connection
        connection.drop_table(_TABLE, ignore_missing=True)
        first = next(batch for delta in deltas for batch in delta.batches() if batch.num_rows)
        dimension = len(first.column("vector")[0])
        vector = pa.list_(pa.float32(), dimension)
        position = MEMORY_SCHEMA.get_field_index("vector")
        schema = MEMORY_SCHEMA.set(position, pa.field("vector", vector, nullable=False))
        table = connection.create_table(_TABLE, schema=pa.schema([*schema, *INDEX_COLUMNS]))
        table.tags.create(EMPTY_MEMORY, table.version)

    def _pinned(self, version: str) -> Table:
        table = self._connection.open_table(_TABLE)
        table.checkout(version)
        return table

    def _tag(self, version: str) -> int | None:
        """The table version that is tagged with a memory version; None if there is no such tag."""
        if not self.exists:
            return None
        try:
            return int(self._connection.open_table(_TABLE).tags.get_version(version))
        except _UNREADABLE:
            return None

    @cached_property
    def _connection(self) -> DBConnection:
        import lancedb

        session = lancedb.Session(
            index_cache_size_bytes=self._cache_bytes, metadata_cache_size_bytes=self._cache_bytes
        )
        return lancedb.connect(self._folder, session=session)

    @contextmanager
    def _one_process(self) -> Iterator[None]:
        path = self._folder.with_name(self._folder.name + ".lock")
        refuse_links_out(self._folder.parent, [self._folder])
        with store_errors("write the memory index", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_to_write(path, "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield


def _change(table: Table, delta: Delta) -> int:
    """Apply one delta to the table; returns by how many entries it grew."""
    operations = by_entry(delta.operations())
    brought: set[str] = set()
    batches = []
    for batch in delta.batches():
        brought.update(batch.column("entry_id").to_pylist() if operations else ())
        batches.append(apply(batch, operations))
    earlier = {entry_id: done for entry_id, done in operations.items() if entry_id not in brought}
    # Changed rows are deleted, then added again together with the new ones, in one file. What a kill leaves
    # between the two has no tag, so the table continues from the version before.
    staying = [entry_id for entry_id, done in earlier.items() if not removes(done)]
    batches += [apply(batch, earlier) for batch in _rows_of(table, staying)]
    gone = 0
    for names in some_at_a_time(list(earlier)):
        before = table.count_rows()
        table.delete(f"entry_id IN ({names})")
        gone += before - table.count_rows()
    rows = pa.Table.from_batches(batches, schema=MEMORY_SCHEMA)
    if rows.num_rows:
        table.add(with_index_columns(rows).cast(table.schema))
    return int(rows.num_rows) - gone


def _rows_of(table: Table, entry_ids: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these entries, as in Parquet."""
    for names in some_at_a_time(entry_ids):
        found = table.search().where(f"entry_id IN ({names})").select(MEMORY_SCHEMA.names)
        yield from found.to_arrow().cast(MEMORY_SCHEMA).to_batches()


def _maintain(table: Table) -> None:
    """Compact a table of many small files, and adapt the indexes of a large table to its size.

    Files are merged only when enough rows are new, so that each small version of a run costs as much in a
    long history as in a short one.
    """
    fragments = table.stats()["fragment_stats"]
    rows, largest = table.count_rows(), fragments["lengths"]["max"]
    count = fragments["num_fragments"]
    worth_it = count > _FRAGMENTS_AT_MOST or rows - largest >= largest / 4
    if count > _MAX_FRAGMENTS and rows < count * _FRAGMENT_ROWS and worth_it:
        table.optimize(cleanup_older_than=_KEEP_VERSIONS)
    if rows >= INDEXED_ROWS:
        keep_indexes(table, rows)
