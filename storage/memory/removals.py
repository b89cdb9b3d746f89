"""What a memory version takes out of its parent, or does not let in, and why; in Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa

from storage.tables.parquet import TableFormat, read_rows, scan_files, write_rows

Reason = Literal["merged", "evicted", "forgotten"]

MEMORY_REMOVALS = TableFormat(
    name="memory_removals",
    version=1,
    schema=pa.schema(
        [
            pa.field("entry_id", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("detail", pa.string(), nullable=False),
            pa.field("merged_into", pa.string()),
            pa.field("similarity", pa.float32()),
            pa.field("memory_version", pa.string(), nullable=False),
        ]
    ),
    dictionary=("reason", "detail", "merged_into", "memory_version"),
)


@dataclass(frozen=True)
class Removal:
    """An entry that a memory version no longer holds. It stays in the Parquet that brought it."""

    entry_id: str
    reason: Reason
    """`merged`: nearly the same as an earlier one. `evicted`: the memory was full. `forgotten`: asked for."""
    detail: str
    """The policy of the eviction, or the reason that was given for forgetting."""
    memory_version: str
    """The memory version that took it out."""
    merged_into: str | None = None
    """The entry that stands for a merged one."""
    similarity: float | None = None
    """Cosine similarity to that entry, the lesser of situation and text."""


def write_removals(path: Path, removals: Iterable[Removal]) -> int:
    """Write a version's removals and return how many. Equal removals give equal bytes."""
    return write_rows(path, (vars(removal) for removal in removals), MEMORY_REMOVALS)


def read_removals(paths: Sequence[Path]) -> list[Removal]:
    """All removals of files, in order. Raises StoreError for a file in another format."""
    return [Removal(**row) for row in read_rows(paths, MEMORY_REMOVALS)]


def scan_removals(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over exactly these files."""
    return scan_files(paths, MEMORY_REMOVALS)
