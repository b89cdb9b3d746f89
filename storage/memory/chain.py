"""Memory versions as committed artifacts: what each added to its parent, and what it removed.

A memory version is an artifact with Parquet files of the tables `memory` and `memory_removals`; its input
`memory` names its parent. The entries of a version are all that its chain added, less all that it removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifacts.store import Artifact, ArtifactStore
from storage.errors import InputError
from storage.memory.entries import MEMORY, iterate_delta, scan_deltas
from storage.memory.removals import MEMORY_REMOVALS, Removal, read_removals, scan_removals

EMPTY_MEMORY = "empty"
"""The version of a memory that nothing was added to yet."""

PARENT_INPUT = "memory"
"""Name of the input by which an artifact of memory names its parent."""

ENTRIES_FILE = "entries.parquet"
REMOVALS_FILE = "removals.parquet"


@dataclass(frozen=True)
class Delta:
    """What one memory version changed in its parent. Rows are read when they are asked for."""

    version: str
    parent: str
    iteration: int | None
    entry_files: tuple[Path, ...]
    removal_files: tuple[Path, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of the entries that it brought, with vectors, those included that it removed itself."""
        for path in self.entry_files:
            yield from iterate_delta(path)

    def removals(self) -> list[Removal]:
        """What it took out or did not let in."""
        return read_removals(self.removal_files)


def read_delta_of(artifacts: ArtifactStore, version: str) -> Delta:
    """One version's own changes; the artifact is verified.

    Raises InputError for an artifact that is no memory version, DamagedArtifact for a damaged one.
    """
    artifact = artifacts.open(version)
    entries, removals = _files(artifact, MEMORY.name), _files(artifact, MEMORY_REMOVALS.name)
    manifest = artifact.manifest
    if not entries and not removals:
        raise InputError(f"artifact {version} ({manifest.stage}) is no memory version.")
    parent = manifest.inputs.get(PARENT_INPUT, EMPTY_MEMORY)
    return Delta(version, parent, manifest.iteration, entries, removals)


def read_chain(
    artifacts: ArtifactStore, version: str, until: Callable[[str], bool] = lambda _: False
) -> tuple[str, list[Delta]]:
    """The deltas that lead to a version, the oldest first, and the version that they start from.

    That is the nearest one for which `until` is true, else `empty`. Raises what `read_delta_of` does.
    """
    chain = []
    while version != EMPTY_MEMORY and not until(version):
        delta = read_delta_of(artifacts, version)
        chain.append(delta)
        version = delta.parent
    return version, chain[::-1]


def scan_entries(deltas: Sequence[Delta]) -> pl.LazyFrame:
    """Every entry that the deltas brought, whatever became of it."""
    return scan_deltas([path for delta in deltas for path in delta.entry_files])


def scan_removed(deltas: Sequence[Delta]) -> pl.LazyFrame:
    """Every removal of the deltas."""
    return scan_removals([path for delta in deltas for path in delta.removal_files])


def remaining(deltas: Sequence[Delta]) -> Iterator[pa.RecordBatch]:
    """Rows of the entries that a chain has left, in the order they were brought in."""
    removed = {removal.entry_id for delta in deltas for removal in delta.removals()}
    for delta in deltas:
        for batch in delta.batches():
            yield without(batch, removed)


def without(batch: pa.RecordBatch, removed: set[str]) -> pa.RecordBatch:
    """The rows of a batch whose entries are not among `removed`."""
    if not removed:
        return batch
    gone = pc.is_in(batch.column("entry_id"), value_set=pa.array(sorted(removed), pa.string()))
    return batch.filter(pc.invert(gone))


def _files(artifact: Artifact, table: str) -> tuple[Path, ...]:
    return tuple(artifact.path(entry.path) for entry in artifact.files if entry.table == table)
