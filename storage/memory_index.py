"""The LanceDB table of a run's memory: a materialised index of committed deltas, always makeable again.

A memory version is the artifact that added to the memory. The artifacts form a chain by their input
`memory`; the rows of a version are those of its whole chain. In the table each version is a tag.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from storage.artifacts import ArtifactStore
from storage.errors import InputError
from storage.filesystem import open_root, store_errors
from storage.memory_entries import MEMORY_SCHEMA, entries_digest, read_delta

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import Table

EMPTY_MEMORY = "empty"
"""The version of a memory that nothing was added to yet."""

PARENT_INPUT = "memory"
"""Name of the input by which an artifact of memory names its parent."""

_TABLE = "reflections"
_MAX_FRAGMENTS = 16
# What LanceDB raises for files that are gone, cut short or not its own.
_UNREADABLE = (RuntimeError, ValueError)
# Cleaning up raises an error once an old version is tagged, and every version here is.
_KEEP_VERSIONS = timedelta(days=100 * 365)


@dataclass(frozen=True)
class Delta:
    """What one memory version added."""

    version: str
    rows: pa.Table


def index_folder(store_uri: str, run_name: str) -> Path:
    """Where a run's table lies: in the store, or, of an object store, on this machine."""
    return open_root(store_uri).scratch / "memory" / run_name


def read_chain(artifacts: ArtifactStore, version: str) -> list[Delta]:
    """The deltas of a memory version, the oldest first; each artifact is verified.

    Raises InputError for a version that is no committed memory, DamagedArtifact for a damaged one.
    """
    chain = []
    while version != EMPTY_MEMORY:
        artifact = artifacts.open(version)
        files = [entry.path for entry in artifact.files if entry.table == "memory"]
        if not files:
            raise InputError(f"artifact {version} ({artifact.manifest.stage}) is no memory version.")
        chain.append(Delta(version, pa.concat_tables([read_delta(artifact.path(name)) for name in files])))
        version = artifact.manifest.inputs.get(PARENT_INPUT, EMPTY_MEMORY)
    return chain[::-1]


class MemoryIndex:
    """The table in `folder`. It is compared with the artifacts before its first use, and mended where a
    kill, a deletion or another run's artifacts left it behind."""

    def __init__(self, folder: Path, artifacts: ArtifactStore) -> None:
        self._folder = folder
        self._artifacts = artifacts
        self._trusted: set[str] = set()
        self._one_thread = threading.Lock()

    def open(self, version: str) -> Table | None:
        """The table as it is at a memory version; None while the memory has no entries.

        Raises InputError for an unknown version, DamagedArtifact when a delta of its chain is damaged,
        StoreError when the table cannot be written.
        """
        with self._one_thread:
            if version not in self._trusted:
                deltas = read_chain(self._artifacts, version)
                if not any(delta.rows.num_rows for delta in deltas):
                    return None
                with self._one_process():
                    if not self._holds(deltas):
                        self._repair(deltas)
                self._trusted.add(version)
            return self._pinned(version)

    def holds(self, version: str) -> bool:
        """Whether the table has exactly the entries of a version, each once; changes nothing."""
        deltas = read_chain(self._artifacts, version)
        return not any(delta.rows.num_rows for delta in deltas) or self._holds(deltas)

    def _holds(self, deltas: Sequence[Delta]) -> bool:
        try:
            if deltas[-1].version not in self._tags():
                return False
            held = self._pinned(deltas[-1].version).to_arrow()
        except _UNREADABLE:
            return False
        return entries_digest(held) == entries_digest(pa.concat_tables([delta.rows for delta in deltas]))

    def _repair(self, deltas: Sequence[Delta]) -> None:
        """Add what the table lacks; where that does not make it whole, make it anew."""
        with suppress(*_UNREADABLE):
            self._extend(deltas)
            if self._holds(deltas):
                return
        self._connect().drop_table(_TABLE, ignore_missing=True)
        self._extend(deltas)

    def _extend(self, deltas: Sequence[Delta]) -> None:
        """Add the deltas after the newest one that is tagged, and tag each."""
        tags = self._tags()
        if EMPTY_MEMORY not in tags:
            self._create(deltas)
            tags = self._tags()
        known = [position for position, delta in enumerate(deltas, start=1) if delta.version in tags]
        done = max(known, default=0)
        table = self._connect().open_table(_TABLE)
        base = tags[deltas[done - 1].version if done else EMPTY_MEMORY]
        if table.version != base:
            table.checkout(base)
            table.restore()
        for delta in deltas[done:]:
            if delta.rows.num_rows:
                merge = table.merge_insert("entry_id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(delta.rows.cast(table.schema))
            if table.stats()["fragment_stats"]["num_fragments"] > _MAX_FRAGMENTS:
                table.optimize(cleanup_older_than=_KEEP_VERSIONS)
            table.tags.create(delta.version, table.version)

    def _create(self, deltas: Sequence[Delta]) -> None:
        connection = self._connect()
        connection.drop_table(_TABLE, ignore_missing=True)
        first = next(delta.rows for delta in deltas if delta.rows.num_rows)
        vector = pa.list_(pa.float32(), len(first.column("vector")[0]))
        position = MEMORY_SCHEMA.get_field_index("vector")
        schema = MEMORY_SCHEMA.set(position, pa.field("vector", vector, nullable=False))
        table = connection.create_table(_TABLE, schema=schema)
        # Without a primary key, two writers of one entry would both insert it and nobody would be told.
        table.set_unenforced_primary_key("entry_id")
        table.tags.create(EMPTY_MEMORY, table.version)

    def _pinned(self, version: str) -> Table:
        table = self._connect().open_table(_TABLE)
        table.checkout(version)
        return table

    def _tags(self) -> dict[str, int]:
        """Memory version -> version of the table; empty where there is no table."""
        connection = self._connect()
        if _TABLE not in connection.list_tables().tables:
            return {}
        return {name: tag["version"] for name, tag in connection.open_table(_TABLE).tags.list().items()}

    def _connect(self) -> DBConnection:
        import lancedb

        return lancedb.connect(self._folder)

    @contextmanager
    def _one_process(self) -> Iterator[None]:
        path = self._folder.with_name(self._folder.name + ".lock")
        with store_errors("write the memory index", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
