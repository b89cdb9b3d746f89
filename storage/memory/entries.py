"""Memory entries, as a memory version adds them to its parent; in Parquet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from storage.memory.embedder import Embedder
from storage.tables.parquet import TableFormat, require_format, scan_files, write_rows

SCHEMA_VERSION = 3
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
        pa.field("source_trajectory_id", pa.string()),
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("policy_version", pa.string(), nullable=False),
        pa.field("parent_entry_ids", pa.list_(pa.string()), nullable=False),
        pa.field("memory_version", pa.string(), nullable=False),
        pa.field("environment", pa.string()),
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
        "memory_version",
        "environment",
    ),
    float_lists=("vector.list.element",),
)


@dataclass(frozen=True)
class MemoryEntry:
    """A text that helped in a situation. Its vector is the embedding of `key_text`."""

    entry_id: str
    kind: str
    text: str
    """What the memory tells."""
    task_type: str
    task_text: str
    """The task as the policy was told it."""
    feedback: str
    """What the environment said of the failed attempt."""
    key_text: str
    """What was embedded: an entry is found by the similarity of a query to this text."""
    reward_before: float
    """Reward of the attempt that the text is about."""
    reward_after: float
    """Reward of the attempt that followed it."""
    source_trajectory_id: str | None
    """The trajectory that the text was taken from; None where no policy wrote it."""
    iteration: int
    policy_version: str
    """Artifact id of the checkpoint that wrote it; empty where none did."""
    parent_entry_ids: tuple[str, ...]
    """Entries that stood in the prompt when the text was written."""
    memory_version: str
    """The memory version that brought it in."""
    environment: str | None = None
    """Type of the environment; None where there was none."""

    @property
    def gain(self) -> float:
        """What the text was worth: reward after it less reward before it."""
        return self.reward_after - self.reward_before


def write_delta(path: Path, entries: Sequence[MemoryEntry], embedder: Embedder) -> int:
    """Write what a memory version adds to its parent, with vectors; returns the number of entries.

    Raises ValueError when two entries have one id.
    """
    vectors = embedder.embed([entry.key_text for entry in entries])
    return write_embedded(path, entries, vectors, embedder.embedding_model)


def write_embedded(
    path: Path, entries: Sequence[MemoryEntry], vectors: npt.NDArray[np.float32], embedding_model: str
) -> int:
    """Like `write_delta`, for vectors that are there already, [entry, dimension]; of unit length.

    Raises ValueError when two entries have one id.
    """
    ids = [entry.entry_id for entry in entries]
    doubles = (
        sorted({entry_id for entry_id in ids if ids.count(entry_id) > 1}) if len(set(ids)) < len(ids) else []
    )
    if doubles:
        raise ValueError(f"memory entries appear more than once: {', '.join(doubles[:5])}")
    rows = (
        {**vars(entry), "vector": vector, "embedding_model": embedding_model}
        for entry, vector in zip(entries, vectors, strict=True)
    )
    return write_rows(path, rows, MEMORY)


def iterate_delta(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of one delta in batches, so that a large one need not fit into memory.

    Raises StoreError for a file in another format.
    """
    require_format(path, MEMORY)
    for batch in pq.ParquetFile(path).iter_batches():
        yield pa.RecordBatch.from_arrays(
            [
                batch.column(field.name).cast(field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in MEMORY_SCHEMA
            ],
            schema=MEMORY_SCHEMA,
        )


def scan_deltas(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over exactly these files."""
    return scan_files(paths, MEMORY)


def entries_digest(rows: pa.Table | Iterable[pa.RecordBatch]) -> str:
    """64 hex digits over entries with their vectors: equal for equal entries, however they are stored.

    The sum of the rows' SHA-256 modulo 2**256, so that neither order nor batches matter and rows need not
    be in memory together. It finds faults, not a forger.
    """
    names = [name for name in MEMORY_SCHEMA.names if name != "vector"]
    encode = json.JSONEncoder(allow_nan=False).encode
    total = 0
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
        if not batch.num_rows:
            continue
        columns = [batch.column(name).to_pylist() for name in names]
        vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
        lines = np.ascontiguousarray(vectors, dtype=np.float32).reshape(batch.num_rows, -1)
        for vector, *values in zip(lines, *columns, strict=True):
            hashed = hashlib.sha256(vector.tobytes())
            hashed.update(encode(values).encode("utf-8"))
            total += int.from_bytes(hashed.digest(), "big")
    return f"{total % 2**256:064x}"
