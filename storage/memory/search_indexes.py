"""Indexes of a large memory's table: for vectors, for words and for the columns that searches filter by.

They answer people's questions in milliseconds. What training retrieves comes from exact search, which uses
the indexes of the filters alone: whether an approximate search finds an entry depends on how an index was
trained, and that on the table's history.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

from storage.memory.index_columns import CREDIT_STEP, INDEX_KEY, TEXT_KEY

if TYPE_CHECKING:
    from lancedb.table import Table

INDEXED_ROWS = 20_000
"""A table of at least this many entries has indexes; a smaller one is searched as fast without."""

PROBES = 120
"""Partitions that a search of the vector index looks into, out of the square root of the entries."""

TYPED_PROBES = 30
"""The same for one task type, whose entries lie together."""

REFINED = 120
"""Candidates at least that are compared again by their whole keys, and five times those asked for."""

TEXT_COLUMNS = ("text", "key_text")
"""Columns that a search by words looks into: the lesson, and the situation (task and feedback) it is for."""

_BITMAPS = ("task_type", "environment", CREDIT_STEP)
_TREES = ("entry_id", TEXT_KEY, "credit", "iteration")
_VECTOR = "vector-of-"
_GROWTH = 4
_UNINDEXED_SHARE = 0.01
_PARTS = 4
_TRAINING_PASSES, _TRAINING_ROWS = 25, 128  # of k-means; rows for each partition
_FOR_EVER = timedelta(days=100 * 365)


def keep_indexes(table: Table, rows: int) -> None:
    """Give a table of `rows` rows its indexes, or bring those it has up to its size.

    New rows are added to the indexes when a hundredth of the table is not in them; until then searches go
    through the new rows one by one. What is added is a part by itself, that each search looks into, so after
    four such parts the partitions of the vectors are learnt again from all rows; and so they are when the
    table has become four times as large at once.
    """
    names = {index.name for index in table.list_indices()}
    old = next((name for name in names if name.startswith(_VECTOR)), None)
    if old is None:
        # Files are put together first: a search reads its rows from few files in less time.
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
    """Type of the table's vector index, such as `IVF_RQ`; None where it has none."""
    indexes = table.list_indices()
    return next((str(index.index_type) for index in indexes if index.name.startswith(_VECTOR)), None)


def has_text_index(table: Table) -> bool:
    """Whether full text can be searched in the table itself."""
    return any(str(index.index_type) == "FTS" for index in table.list_indices())


def index_texts(table: Table) -> None:
    """Make the indexes of words: lower case, stems, without stop words and accents, in English."""
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
    """IVF_RQ: one bit a dimension, so that a million entries take 50 MB and the exact vectors of the best
    candidates decide. It needs dimensions in eights; others get IVF_SQ, with a byte a dimension."""
    from lancedb.index import IvfRq, IvfSq

    kind = IvfRq if table.schema.field(INDEX_KEY).type.list_size % 8 == 0 else IvfSq
    config = kind(
        distance_type="cosine",
        num_partitions=max(1, math.isqrt(rows)),
        max_iterations=_TRAINING_PASSES,
        sample_rate=_TRAINING_ROWS,
    )
    table.create_index(INDEX_KEY, config=config, name=f"{_VECTOR}{rows}")
