"""Indexes of a large memory's table: for vectors, for words and for the columns that searches filter by.

They answer interactive searches in milliseconds. Training retrieves by exact search, which uses only the
indexes of the filters: whether an approximate search finds an entry depends on how the index was trained,
and so on the table's history.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from storage.memory.entries import ENTRY_COLUMNS, MemoryEntry, entry_of, text_key
from storage.memory.vector_index import vector_index_config

if TYPE_CHECKING:
    from lancedb.table import Table


ENTRY = "entry"
TEXT_KEY = "text_key"
INDEX_COLUMNS = [pa.field(TEXT_KEY, pa.string()), pa.field(ENTRY, pa.string())]
"""Columns of the table that entries do not have: `MemoryEntry.text_key`, and the whole entry as JSON."""


def with_index_columns(rows: pa.Table) -> pa.Table:
    """Entries with these additional columns."""
    said = zip(rows.column("task_type").to_pylist(), rows.column("text").to_pylist(), strict=True)
    text_keys = [text_key(task_type, text) for task_type, text in said]
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    entries = [encode(row) for row in rows.select(ENTRY_COLUMNS).to_pylist()]
    for field, column in zip(INDEX_COLUMNS, (text_keys, entries), strict=True):
        rows = rows.append_column(field, pa.array(column, field.type))
    return rows


def read_entry(text: str) -> MemoryEntry:
    """An entry from the JSON in its column `entry`."""
    return entry_of(json.loads(text))


INDEXED_ROWS = 20_000
"""A table of at least this many entries has indexes; a smaller one is searched as fast without them."""

PROBES = 120
"""Least number of partitions that a search of the vector index visits; their total is the square root of the
entries. LanceDB visits more where too few candidates meet a search's condition."""

REFINED = 120
"""Least number of candidates that are compared by their exact vectors; also at least five times `top_k`."""

TEXT_COLUMNS = ("text", "key_text")
"""Columns for search by words: the entry's text, and the situation (task and feedback) that it is for."""

_BITMAPS = ("task_type", "environment")
_TREES = ("entry_id", TEXT_KEY, "credit", "iteration")
_VECTOR = "vector-of-"
_GROWTH = 4
_UNINDEXED_SHARE = 0.01
_PARTS = 4
_NAMED_AT_ONCE = 1000
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


def some_at_a_time(texts: Sequence[str]) -> Iterator[str]:
    """Lists of at most `_NAMED_AT_ONCE` texts each, in LanceDB's SQL."""
    for start in range(0, len(texts), _NAMED_AT_ONCE):
        yield ", ".join(map(quote, texts[start : start + _NAMED_AT_ONCE]))


def _index_columns(table: Table) -> None:
    from lancedb.index import Bitmap, BTree

    for column in _BITMAPS:
        table.create_index(column, config=Bitmap())
    for column in _TREES:
        table.create_index(column, config=BTree())
    index_texts(table)


def _index_vectors(table: Table, rows: int) -> None:
    config = vector_index_config(rows, table.schema.field("vector").type.list_size)
    table.create_index("vector", config=config, name=f"{_VECTOR}{rows}")
