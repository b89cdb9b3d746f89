"""A memory version's operations on existing entries, in Parquet: updates, returns and removals.

A version adds entries (`storage.memory.entries`) and operates on entries. Nothing else changes a memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa

from storage.memory.entries import MEMORY_SCHEMA, MemoryEntry, entry_of
from storage.tables.parquet import TableFormat, read_rows, scan_files, schema_of, write_rows

OperationName = Literal["update", "return", "remove"]
Reason = Literal["", "evicted", "forgotten", "replaced"]


@dataclass(frozen=True)
class Operation:
    """One change of one entry. Its numbers are added to those of the entry.

    `update`: there is more evidence about the entry. `return`: its text was written again, so the entry gets
    more support. `remove`: the entry leaves the memory; it stays in the Parquet file that added it.
    """

    operation: OperationName
    """`update`, `return` or `remove`."""
    entry_id: str
    """The entry that is changed."""
    iteration: int
    """The one whose rollouts led to it."""
    memory_version: str
    """The memory version that this is a part of."""
    support: int = 0
    """Added to the entry's support."""
    credit_sum: float = 0.0
    """Sum of `credit_count` observations; see `storage.memory.credit`."""
    credit_count: int = 0
    """Observations in `credit_sum`."""
    retrievals: int = 0
    """Added to the entry's retrievals."""
    trajectory_ids: tuple[str, ...] = ()
    """Trajectories that wrote the text again."""
    parent_entry_ids: tuple[str, ...] = ()
    """Entries that were in the prompts of these trajectories."""
    similarity: float | None = None
    """Cosine similarity of the entry's text and a near-duplicate of it; None for equal texts."""
    reason: Reason = ""
    """Why it was removed. `evicted`: the memory was full. `forgotten`: a user asked for it. `replaced`: by
    an entry that has it as parent, or by those that a merge has kept."""
    detail: str = ""
    """The eviction rule, the reason that was given for forgetting, or what replaced it."""


MEMORY_OPERATIONS = TableFormat(
    name="memory_operations",
    version=1,
    schema=schema_of(Operation, credit_sum=pa.float64(), similarity=pa.float64()),
    dictionary=("operation", "memory_version", "reason", "detail"),
)

PRIOR = 8
"""Number of observations of 0 that every entry begins with; see `storage.memory.credit`."""


def with_observations(credit: float, count: int, total: float, number: int) -> tuple[float, int]:
    """Credit and count after `number` more observations that add up to `total`."""
    return (credit * (count + PRIOR) + total) / (count + number + PRIOR), count + number


def changed(entry: MemoryEntry, operation: Operation) -> MemoryEntry:
    """The entry after an `update` or a `return`."""
    credit, count = with_observations(
        entry.credit, entry.credit_count, operation.credit_sum, operation.credit_count
    )
    written = operation.operation == "return"
    new = (each for each in operation.parent_entry_ids if each != entry.entry_id)
    return replace(
        entry,
        support=entry.support + operation.support,
        credit=credit,
        credit_count=count,
        retrievals=entry.retrievals + operation.retrievals,
        last_iteration=max(entry.last_iteration, operation.iteration) if written else entry.last_iteration,
        parent_entry_ids=tuple(dict.fromkeys((*entry.parent_entry_ids, *new))),
    )


STATE_COLUMNS = ("support", "credit", "credit_count", "retrievals", "last_iteration", "parent_entry_ids")
"""Columns of an entry that operations change."""


def by_entry(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """The operations on each entry, in order."""
    grouped: dict[str, list[Operation]] = {}
    for operation in operations:
        grouped.setdefault(operation.entry_id, []).append(operation)
    return grouped


def apply(batch: pa.RecordBatch, operations: Mapping[str, Sequence[Operation]]) -> pa.RecordBatch:
    """Rows of entries after the operations on each, without the removed ones."""
    ids = batch.column("entry_id").to_pylist()
    kept = [place for place, entry_id in enumerate(ids) if not removes(operations.get(entry_id, ()))]
    if len(kept) < len(ids):
        batch = batch.take(pa.array(kept, pa.int64()))
        ids = [ids[place] for place in kept]
    touched = [place for place, entry_id in enumerate(ids) if entry_id in operations]
    if not touched:
        return batch
    columns = {name: batch.column(name).to_pylist() for name in STATE_COLUMNS}
    for place, row in zip(touched, batch.take(pa.array(touched, pa.int64())).to_pylist(), strict=True):
        entry = entry_of(row)
        for operation in operations[entry.entry_id]:
            entry = changed(entry, operation)
        for name, values in columns.items():
            values[place] = getattr(entry, name)
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else batch.column(field.name)
        for field in MEMORY_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=MEMORY_SCHEMA)


def removes(operations: Iterable[Operation]) -> bool:
    """Whether an entry has left after these operations on it."""
    return any(operation.operation == "remove" for operation in operations)


def write_operations(path: Path, operations: Iterable[Operation]) -> int:
    """Write a version's operations and return how many. Equal operations give equal bytes."""
    return write_rows(path, (vars(operation) for operation in operations), MEMORY_OPERATIONS)


def read_operations(paths: Sequence[Path]) -> list[Operation]:
    """All operations of files, in order. Raises StoreError for a file in another format."""
    return [Operation(**row) for row in read_rows(paths, MEMORY_OPERATIONS)]


def operation_of(row: Mapping[str, Any]) -> Operation:
    """An operation from its columns."""
    lists = {name: tuple(row[name]) for name in ("trajectory_ids", "parent_entry_ids")}
    return Operation(**{**row, **lists})


def scan_operations(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over exactly these files."""
    return scan_files(paths, MEMORY_OPERATIONS)
