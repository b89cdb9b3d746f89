"""Memory entries, in the Parquet format in which a memory version adds them to its parent."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import InputError, StoreError
from storage.tables.parquet import TableFormat, require_format, scan_files, write_rows


class Embedder(Protocol):
    """Turns texts into vectors. Equal texts must have equal vectors, whatever else is in the batch."""

    @property
    def model(self) -> str:
        """The name by which a program can load the model again."""
        ...

    @property
    def embedding_model(self) -> str:
        """Name and digest of the weights; if they differ, vectors of two embedders cannot be compared."""
        ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of unit length, shape [text, dimension]."""
        ...


SCHEMA_VERSION = 4
MEMORY_SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.string(), nullable=False),  # `m-` and 32 hex digits
        pa.field("kind", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("task_type", pa.string(), nullable=False),  # kind of task that the text is for
        pa.field("task_text", pa.string(), nullable=False),
        pa.field("feedback", pa.string(), nullable=False),
        pa.field("key_text", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32()), nullable=False),  # embedding of `key_text`
        pa.field("embedding_model", pa.string(), nullable=False),  # the model that made the vector
        pa.field("support", pa.int32(), nullable=False),
        pa.field("credit", pa.float64(), nullable=False),
        pa.field("credit_count", pa.int32(), nullable=False),
        pa.field("retrievals", pa.int32(), nullable=False),
        pa.field("source_trajectory_id", pa.string()),
        pa.field("iteration", pa.int32(), nullable=False),
        pa.field("last_iteration", pa.int32(), nullable=False),
        pa.field("policy_version", pa.string(), nullable=False),
        pa.field("parent_entry_ids", pa.list_(pa.string()), nullable=False),
        pa.field("operation", pa.string(), nullable=False),  # `add`, or `update` of its parents
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
        "operation",
        "memory_version",
        "environment",
    ),
    float_lists=("vector.list.element",),
)


Addition = Literal["add", "update"]
"""How an entry came into the memory: as a new text, or as a rewriting of its parents."""


@dataclass(frozen=True)
class MemoryEntry:
    """A text that helped in a situation. Its vector is the embedding of `key_text`.

    A memory has one entry for each text and task type. `support`, `credit`, `credit_count`, `retrievals`,
    `last_iteration` and `parent_entry_ids` depend on the memory version: operations change them.
    """

    entry_id: str
    kind: str
    """What the text is, such as `reflection`."""
    text: str
    """The text that a prompt shows."""
    task_type: str
    task_text: str
    """The task as the policy's prompt stated it."""
    feedback: str
    """What the environment said about the failed attempt."""
    key_text: str
    """What was embedded: an entry is found by the similarity of a query to this text."""
    source_trajectory_id: str | None
    """The trajectory that the text was first taken from; None if no policy wrote it."""
    iteration: int
    """The iteration that added it."""
    last_iteration: int
    """The last iteration in which the text was written."""
    policy_version: str
    """Artifact id of the checkpoint that first wrote it; empty if none did."""
    parent_entry_ids: tuple[str, ...]
    """Other entries that were in a prompt when the text was written."""
    memory_version: str
    """The memory version that added it."""
    environment: str | None = None
    """Type of the environment; None if there was none."""
    operation: Addition = "add"
    support: int = 1
    """How many times the text was written and helped."""
    credit: float = 0.0
    """Mean reward that trajectories with it gained over those of their group without memory, shrunk towards
    0; see `storage.memory.credit`."""
    credit_count: int = 0
    """Number of observations behind the credit."""
    retrievals: int = 0
    """How many prompts held it."""

    @property
    def text_key(self) -> str:
        """32 hex digits, equal for entries with the same text and task type."""
        return text_key(self.task_type, self.text)


def text_key(task_type: str, text: str) -> str:
    """See `MemoryEntry.text_key`."""
    said = f"{task_type}\0{text}".encode()
    return hashlib.sha256(said).hexdigest()[:32]


ENTRY_COLUMNS = [field.name for field in fields(MemoryEntry)]
"""All columns but the vector and the model that made it."""


def entry_of(row: Mapping[str, Any]) -> MemoryEntry:
    """An entry from a row, which may have further columns."""
    values = {name: row[name] for name in ENTRY_COLUMNS}
    return MemoryEntry(**{**values, "parent_entry_ids": tuple(values["parent_entry_ids"])})


def write_delta(path: Path, entries: Sequence[MemoryEntry], embedder: Embedder) -> int:
    """Write what a memory version adds to its parent, with vectors; returns the number of entries.

    Raises what `write_embedded` raises.
    """
    vectors = embedder.embed([entry.key_text for entry in entries])
    return write_embedded(path, entries, vectors, embedder.embedding_model)


def write_embedded(
    path: Path, entries: Sequence[MemoryEntry], vectors: npt.NDArray[np.float32], embedding_model: str
) -> int:
    """Like `write_delta`, with vectors that were computed before: [entry, dimension], of unit length.

    Raises ValueError when two entries have one id, InputError for a vector that points nowhere: no search
    finds a zero, and one that is not finite keeps the whole memory from being opened.
    """
    lengths = np.linalg.norm(vectors, axis=1) if len(entries) else np.empty(0)
    for place in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))):
        raise InputError(
            f"embedding model {embedding_model} gave a vector of length {lengths[place]} for the text "
            f"{entries[place].key_text[:60]!r}: no search can compare it. Use another model."
        )
    counts = Counter(entry.entry_id for entry in entries)
    if doubles := sorted(entry_id for entry_id, count in counts.items() if count > 1):
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
        columns = [batch.column(field.name).cast(field.type) for field in MEMORY_SCHEMA]
        yield pa.RecordBatch.from_arrays(columns, schema=MEMORY_SCHEMA)


def scan_deltas(paths: Sequence[Path]) -> pl.LazyFrame:
    """A lazy frame over exactly these files."""
    return scan_files(paths, MEMORY)


def entries_digest(rows: pa.Table | Iterable[pa.RecordBatch]) -> str:
    """64 hex digits over entries with their vectors: equal for equal entries, however they are stored.

    The sum of the rows' SHA-256 modulo 2**256, so that neither order nor batches matter and rows need not
    be in memory together. It detects faults, not forgery.
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


Rows = npt.NDArray[np.int64]
"""Row numbers, ascending, counted from 0 over all files."""


class EntryFiles:
    """Reads rows of Parquet files of entries. Their footers are read once.

    Raises StoreError for a file in another format.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._groups: list[tuple[Path, pq.FileMetaData, int]] = []
        counts = [0]
        for path in paths:
            require_format(path, MEMORY)
            footer = pq.read_metadata(path)
            for group in range(footer.num_row_groups):
                self._groups.append((path, footer, group))
                counts.append(footer.row_group(group).num_rows)
        self._starts = np.cumsum(counts)

    def read(self, rows: Rows, columns: Sequence[str]) -> pa.Table:
        """Some columns of some entries."""
        schema = pa.schema([MEMORY_SCHEMA.field(name) for name in columns])
        ends = np.searchsorted(rows, self._starts)
        found = [schema.empty_table()]
        for place in np.flatnonzero(np.diff(ends)):
            path, footer, group = self._groups[place]
            wanted = rows[ends[place] : ends[place + 1]] - self._starts[place]
            read = pq.ParquetFile(path, metadata=footer).read_row_group(group, columns=list(columns))
            found.append(read.take(wanted).select(list(columns)).cast(schema))
        return pa.concat_tables(found)

    def vectors(self, rows: Rows) -> npt.NDArray[np.float32]:
        """The vectors of some entries, [entry, dimension].

        Raises StoreError if they are not all of the same length.
        """
        column = self.read(rows, ["vector"]).column("vector").combine_chunks()
        lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
        if lengths.size > 1:
            raise StoreError("the memory holds vectors of several lengths, which cannot be compared.")
        values: npt.NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(rows), -1) if len(rows) else np.empty((0, 0), np.float32)
