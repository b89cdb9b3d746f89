"""Memory versions as committed artifacts: what each added to its parent, and its operations on entries.

A memory version is an artifact with Parquet files of the tables `memory` and `memory_operations`; its input
`memory` names its parent. The entries of a version are all that its chain of versions added, with the
changes of the chain's operations, without those that were removed, and without those that were redacted: an
entry whose text was taken out of its file is in no version any more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from storage.artifacts.store import Artifact, ArtifactStore
from storage.errors import InputError
from storage.memory import operations as ops
from storage.memory.entries import MEMORY, MemoryEntry, entry_of, iterate_delta, scan_deltas
from storage.memory.versions import EMPTY_MEMORY, PARENT_INPUT

ENTRIES_FILE = "entries.parquet"
OPERATIONS_FILE = "operations.parquet"
NO_TEXT = ""
"""Text of an entry that was redacted."""


@dataclass(frozen=True)
class Delta:
    """What one memory version changed in its parent. Rows are read when they are needed."""

    version: str
    parent: str
    iteration: int | None
    entry_files: tuple[Path, ...]
    operation_files: tuple[Path, ...]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows of the entries that it added, with vectors, including those that it removed itself. Redacted
        ones are left out."""
        for path in self.entry_files:
            for batch in iterate_delta(path):
                yield batch.filter(pc.not_equal(batch.column("text"), NO_TEXT))

    def operations(self) -> list[ops.Operation]:
        """Its operations on entries, its own and earlier ones."""
        return ops.read_operations(self.operation_files)


def read_delta_of(artifacts: ArtifactStore, version: str) -> Delta:
    """One version's own changes; the artifact is verified.

    Raises InputError for an artifact that is not a memory version, DamagedArtifact for a damaged one.
    """
    artifact = artifacts.open(version)
    entries, operations = _files(artifact, MEMORY.name), _files(artifact, ops.MEMORY_OPERATIONS.name)
    manifest = artifact.manifest
    if not entries and not operations:
        raise InputError(f"artifact {version} ({manifest.stage}) is not a memory version.")
    parent = manifest.inputs.get(PARENT_INPUT, EMPTY_MEMORY)
    return Delta(version, parent, manifest.iteration, entries, operations)


def read_chain(
    artifacts: ArtifactStore, version: str, until: Callable[[str], bool] = lambda _: False
) -> tuple[str, list[Delta]]:
    """The version that a chain starts from, and the deltas from it to `version`, the oldest first.

    The start is the version itself or its nearest ancestor for which `until` is true, else `empty`. Raises
    what `read_delta_of` does.
    """
    chain = []
    while version != EMPTY_MEMORY and not until(version):
        delta = read_delta_of(artifacts, version)
        chain.append(delta)
        version = delta.parent
    return version, chain[::-1]


def scan_entries(deltas: Sequence[Delta]) -> pl.LazyFrame:
    """Every entry that the deltas added, as it was added, also if it was removed later."""
    return scan_deltas([path for delta in deltas for path in delta.entry_files])


def texts_of(
    artifacts: ArtifactStore, version: str | None, entry_ids: Sequence[str] | None = None
) -> dict[str, str]:
    """Texts of the entries that a memory version or one before it added, or of some of them, by id; none if
    the version is not in the store."""
    if not version or artifacts.find(version) is None:
        return {}
    entries = scan_entries(read_chain(artifacts, version)[1]).select("entry_id", "text")
    if entry_ids is not None:
        entries = entries.filter(pl.col("entry_id").is_in(pl.Series(entry_ids, dtype=pl.String).implode()))
    return dict(entries.collect().iter_rows())


def scan_changes(deltas: Sequence[Delta]) -> pl.LazyFrame:
    """Every operation of the deltas."""
    return ops.scan_operations([path for delta in deltas for path in delta.operation_files])


def removal_of(deltas: Sequence[Delta], entry_id: str) -> ops.Operation | None:
    """The operation that removed an entry; None if it was not removed."""
    named = (pl.col("entry_id") == entry_id) & (pl.col("operation") == "remove")
    found = scan_changes(deltas).filter(named).collect().to_dicts()
    return ops.operation_of(found[0]) if found else None


def remaining(deltas: Sequence[Delta]) -> Iterator[pa.RecordBatch]:
    """Rows of the entries in a memory after a chain, with all changes, in the order of their addition."""
    operations = ops.by_entry(operation for delta in deltas for operation in delta.operations())
    for delta in deltas:
        for batch in delta.batches():
            yield ops.apply(batch, operations)


def held_entries(deltas: Sequence[Delta]) -> pl.LazyFrame:
    """The entries in a memory after a chain, with all changes and vectors, in the order of their addition."""
    speaking = scan_entries(deltas).filter(pl.col("text") != NO_TEXT)
    entries = speaking.join(_removed(deltas), on="entry_id", how="anti", maintain_order="left")
    touched = states(deltas)
    if not touched:
        return entries
    now = pl.LazyFrame(
        [
            {"entry_id": each.entry_id, **{name: getattr(each, name) for name in ops.STATE_COLUMNS}}
            for each in touched.values()
        ],
        schema={"entry_id": pl.String} | {name: pl.Schema(MEMORY.schema)[name] for name in ops.STATE_COLUMNS},
    )
    return entries.join(now, on="entry_id", how="left", suffix="_now", maintain_order="left").select(
        pl.coalesce(f"{name}_now", name).alias(name) if name in ops.STATE_COLUMNS else pl.col(name)
        for name in MEMORY.schema.names
    )


def held_rows(deltas: Sequence[Delta]) -> npt.NDArray[np.int64]:
    """Numbers of the rows that `held_entries` gives, in its order; rows are counted from 0 over all files."""
    ids = scan_entries(deltas).select("entry_id", "text").with_row_index("row")
    speaking = ids.filter(pl.col("text") != NO_TEXT)
    held = speaking.join(_removed(deltas), on="entry_id", how="anti", maintain_order="left")
    return held.select("row").collect()["row"].to_numpy().astype(np.int64)


def _removed(deltas: Sequence[Delta]) -> pl.LazyFrame:
    """Ids of the entries that were removed."""
    operations = scan_changes(deltas).select("entry_id", "operation")
    return operations.filter(pl.col("operation") == "remove").select("entry_id").unique()


def states(deltas: Sequence[Delta]) -> dict[str, MemoryEntry]:
    """By id, the entries that operations of a chain changed, as they are after it; also removed ones."""
    operations = ops.by_entry(
        operation for delta in deltas for operation in delta.operations() if operation.operation != "remove"
    )
    rows = scan_entries(deltas).drop("vector", "embedding_model")
    found = rows.filter(pl.col("entry_id").is_in(list(operations))).collect()
    entries = {}
    for row in found.iter_rows(named=True):
        entry = entry_of(row)
        for operation in operations[entry.entry_id]:
            entry = ops.changed(entry, operation)
        entries[entry.entry_id] = entry
    return entries


def _files(artifact: Artifact, table: str) -> tuple[Path, ...]:
    return tuple(artifact.path(entry.path) for entry in artifact.manifest.tables(table))
