"""Memory entries: what one iteration adds to the reflection memory, in Parquet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from storage.embedding import Embedder
from storage.parquet import TableFormat, require_format, scan_files, write_rows

SCHEMA_VERSION = 1
MEMORY_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),
        pa.field("task_text", pa.string(), nullable=False),
        pa.field("feedback", pa.string(), nullable=False),
        pa.field("key_text", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32()), nullable=False),
        pa.field("embedding_model", pa.string(), nullable=False),
        pa.field("reward_before", pa.float32(), nullable=False),
        pa.field("reward_after", pa.float32(), nullable=False),
        pa.field("source_trajectory_id", pa.string(), nullable=False),
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("policy_version", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("parent_entry_ids", pa.list_(pa.string()), nullable=False),
        pa.field("memory_version", pa.string(), nullable=False),
    ]
)
MEMORY = TableFormat(
    name="memory",
    version=SCHEMA_VERSION,
    schema=MEMORY_SCHEMA,
    dictionary=(
        "kind",
        "text",
        "task_type",
        "task_text",
        "feedback",
        "key_text",
        "embedding_model",
        "policy_version",
        "status",
        "memory_version",
    ),
    float_lists=("vector.list.element",),
)


@dataclass(frozen=True)
class MemoryEntry:
    """A reflection that led to success. Its vector is the embedding of `key_text`."""

    entry_id: str
    kind: str
    text: str
    """The reflection."""
    task_type: str
    task_text: str
    """The task as the policy was told it."""
    feedback: str
    """What the environment said of the failed attempt."""
    key_text: str
    """What was embedded: an entry is found by the similarity of a query to this text."""
    reward_before: float
    """Reward of the attempt that the reflection is on."""
    reward_after: float
    """Reward of the attempt that followed it."""
    source_trajectory_id: str
    """The reflection's trajectory."""
    iteration: int
    policy_version: str
    """Artifact id of the checkpoint that wrote it."""
    status: str
    """`active` entries are retrieved."""
    parent_entry_ids: tuple[str, ...]
    """Entries that the reflection saw."""
    memory_version: str
    """The memory version that brought it in."""


def write_delta(path: Path, entries: Sequence[MemoryEntry], embedder: Embedder) -> int:
    """Write what a memory version adds to its parent, with vectors; returns the number of entries.

    Raises ValueError when two entries have one id.
    """
    ids = [entry.entry_id for entry in entries]
    doubles = (
        sorted({entry_id for entry_id in ids if ids.count(entry_id) > 1}) if len(set(ids)) < len(ids) else []
    )
    if doubles:
        raise ValueError(f"memory entries appear more than once: {', '.join(doubles[:5])}")
    vectors = embedder.embed([entry.key_text for entry in entries])
    model = embedder.embedding_model
    rows = (
        {**vars(entry), "vector": vector, "embedding_model": model}
        for entry, vector in zip(entries, vectors, strict=True)
    )
    return write_rows(path, rows, MEMORY)


def read_delta(path: Path) -> pa.Table:
    """The rows of one delta with its vectors. Raises StoreError for a file in another format."""
    require_format(path, MEMORY)
    return pq.ParquetFile(path).read().select(MEMORY_SCHEMA.names)


def scan_deltas(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over exactly these files."""
    return scan_files(paths, MEMORY)


def entries_digest(rows: pa.Table) -> str:
    """Hex SHA-256 over entries with their vectors in the order of their ids, however they are stored."""
    rows = rows.select(MEMORY_SCHEMA.names).sort_by("entry_id")
    vectors = rows.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    hashed = hashlib.sha256(np.ascontiguousarray(vectors, dtype=np.float32).tobytes())
    for name in MEMORY_SCHEMA.names:
        if name != "vector":
            hashed.update(json.dumps(rows.column(name).to_pylist(), allow_nan=False).encode("utf-8"))
    return hashed.hexdigest()
