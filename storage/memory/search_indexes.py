"""Indexes of a large memory's table: for vectors, for words and for the columns that searches filter by.

They answer interactive searches in milliseconds. Training retrieves by exact search, which uses only the
indexes of the filters: whether an approximate search finds an entry depends on how the index was trained,
and so on the table's history.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage.memory.entries import ENTRY_COLUMNS, MemoryEntry, entry_of, text_key

if TYPE_CHECKING:
    from lancedb.table import Table


INDEX_KEY = "index_key"
ENTRY = "entry"
CREDIT_STEP = "credit_step"
TEXT_KEY = "text_key"

_CODE_LENGTH = 32
_NO_CODE = np.zeros(_CODE_LENGTH, np.float32)
_STEPS = 64
_FIRST_STEP, _LAST_STEP = -2 * _STEPS, 2 * _STEPS - 1
"""First and last step: those of credits -2 and just below 2. Credits beyond are clipped to them."""


def index_columns(dimension: int) -> list[pa.Field]:
    """The columns' types, for vectors of `dimension` numbers."""
    return [
        pa.field(CREDIT_STEP, pa.int32()),
        pa.field(TEXT_KEY, pa.string()),
        pa.field(ENTRY, pa.string()),
        # Half precision is enough to choose candidates, which are then compared by their exact vectors.
        pa.field(INDEX_KEY, pa.list_(pa.float16(), dimension + 2 * _CODE_LENGTH)),
    ]


def with_index_columns(rows: pa.Table) -> pa.Table:
    """Entries with these additional columns."""
    vectors = rows.column("vector").combine_chunks().flatten().to_numpy().reshape(rows.num_rows, -1)
    # Every entry has both codes, so that all keys have the same norm and a missing code makes none nearer.
    codes = [
        np.stack([_code(name or "") for name in rows.column(column).to_pylist()])
        for column in ("task_type", "environment")
    ]
    keys = np.concatenate([vectors, *codes], axis=1).astype(np.float16)
    steps = pa.array(_steps(rows.column("credit").to_numpy()))
    said = zip(rows.column("task_type").to_pylist(), rows.column("text").to_pylist(), strict=True)
    text_keys = pa.array([text_key(task_type, text) for task_type, text in said], pa.string())
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    entries = map(encode, rows.select(ENTRY_COLUMNS).to_pylist())
    values = [steps, text_keys, pa.array(entries, pa.string())]
    fields = index_columns(vectors.shape[1])
    values.append(pa.FixedSizeListArray.from_arrays(pa.array(keys.ravel()), keys.shape[1]))
    for field, column in zip(fields, values, strict=True):
        rows = rows.append_column(field, column)
    return rows


def read_entry(text: str) -> MemoryEntry:
    """An entry from the JSON in its column `entry`."""
    return entry_of(json.loads(text))


def index_key_of(
    query: npt.NDArray[np.float32], task_type: str | None, environment: str | None
) -> npt.NDArray[np.float16]:
    """The key to search for in `index_key`: near `query`, of one task type and environment; None for any."""
    codes = [_NO_CODE if name is None else _code(name) for name in (task_type, environment)]
    key: npt.NDArray[np.float16] = np.concatenate([query, *codes]).astype(np.float16)
    return key


def credit_condition(minimum: float) -> str:
    """`credit >= minimum` in LanceDB's SQL, by `credit_step` as far as its range allows."""
    step = int(_steps(np.array([minimum]))[0])
    if step == _LAST_STEP:
        return f"credit >= {minimum!r}"
    if minimum == step / _STEPS and step != _FIRST_STEP:
        return f"credit_step >= {step}"
    return f"(credit_step > {step} OR (credit >= {minimum!r} AND credit < {(step + 1) / _STEPS!r}))"


def _steps(credit: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    return np.clip(np.floor(credit * _STEPS), _FIRST_STEP, _LAST_STEP).astype(np.int32)


@lru_cache(maxsize=4096)
def _code(name: str) -> npt.NDArray[np.float32]:
    """A unit vector for a name. Those of two names are almost orthogonal."""
    digest = np.frombuffer(hashlib.sha256(name.encode("utf-8")).digest(), np.uint8)
    signs = np.unpackbits(digest)[:_CODE_LENGTH] * 2.0 - 1.0
    direction: npt.NDArray[np.float32] = (signs / np.sqrt(_CODE_LENGTH)).astype(np.float32)
    return direction


INDEXED_ROWS = 20_000
"""A table of at least this many entries has indexes; a smaller one is searched as fast without them."""

PROBES = 120
"""Partitions that a search of the vector index visits; their total is the square root of the entries."""

TYPED_PROBES = 30
"""The same for one task type, whose entries lie together."""

REFINED = 120
"""Least number of candidates that are compared again by their full keys; also at least five times `top_k`."""

TEXT_COLUMNS = ("text", "key_text")
"""Columns for search by words: the entry's text, and the situation (task and feedback) that it is for."""

_BITMAPS = ("task_type", "environment", CREDIT_STEP)
_TREES = ("entry_id", TEXT_KEY, "credit", "iteration")
_VECTOR = "vector-of-"
_GROWTH = 4
_UNINDEXED_SHARE = 0.01
_PARTS = 4
_TRAINING_PASSES, _TRAINING_ROWS = 25, 128  # of k-means; rows for each partition
_FOR_EVER = timedelta(days=100 * 365)


def keep_indexes(table: Table, rows: int) -> None:
    """Create the indexes of a table of `rows` rows, or adapt them to its size.

    New rows are added to the indexes when more than a hundredth of the table is not in them; until then
    searches scan the new rows one by one. Each addition is a separate part of the index, which every search
    visits. So the vector index is trained again on all rows when it has more than four parts, or when the
    table has become four times as large since its training.
    """
    names = {index.name for index in table.list_indices()}
    old = next((name for name in names if name.startswith(_VECTOR)), None)
    if old is None:
        # Files are merged first: a search reads its rows faster from few files.
        table.optimize(cleanup_older_than=_FOR_EVER)
        _index_columns(table)
        _index_vectors(table, rows)
        return
    outgrown = rows >= _GROWTH * int(old.removeprefix(_VECTOR))
    if not outgrown and table.index_stats(old).num_unindexed_rows <= _UNINDEXED_SHARE * rows:
        return
    if outgrown:
        table.drop_index(old)
    table.optimize(cleanup_older_than=_FOR_EVER)
    if not outgrown and table.index_stats(old).num_indices > _PARTS:
        table.drop_index(old)
        outgrown = True
    if outgrown:
        _index_vectors(table, rows)


def vector_index(table: Table) -> str | None:
    """Type of the table's vector index, such as `IVF_RQ`; None if it has none."""
    indexes = table.list_indices()
    return next((str(index.index_type) for index in indexes if index.name.startswith(_VECTOR)), None)


def has_text_index(table: Table) -> bool:
    """Whether the table has a full-text index."""
    return any(str(index.index_type) == "FTS" for index in table.list_indices())


def index_texts(table: Table) -> None:
    """Create the full-text indexes: English, in lower case, stemmed, without stop words and accents."""
    from lancedb.index import FTS

    for column in TEXT_COLUMNS:
        table.create_index(column, config=FTS())


def quote(text: str) -> str:
    """A string literal of LanceDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def _index_columns(table: Table) -> None:
    from lancedb.index import Bitmap, BTree

    for column in _BITMAPS:
        table.create_index(column, config=Bitmap())
    for column in _TREES:
        table.create_index(column, config=BTree())
    index_texts(table)


def _index_vectors(table: Table, rows: int) -> None:
    """Create the vector index. IVF_RQ takes one bit per dimension, so a million entries take 50 MB; the exact
    vectors of the best candidates decide. It needs a multiple of 8 dimensions; for any other number the index
    is IVF_SQ, with one byte per dimension."""
    from lancedb.index import IvfRq, IvfSq

    kind = IvfRq if table.schema.field(INDEX_KEY).type.list_size % 8 == 0 else IvfSq
    config = kind(
        distance_type="cosine",
        num_partitions=max(1, math.isqrt(rows)),
        max_iterations=_TRAINING_PASSES,
        sample_rate=_TRAINING_ROWS,
    )
    table.create_index(INDEX_KEY, config=config, name=f"{_VECTOR}{rows}")
