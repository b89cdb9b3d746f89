"""Indexes of a large memory's table: for vectors, for words and for the columns that searches filter by.

They answer people's questions in milliseconds. What training retrieves comes from exact search, which uses
the indexes of the filters alone: whether an approximate search finds an entry depends on how an index was
trained, and that on the table's history.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lancedb.table import Table

INDEXED_ROWS = 20_000
"""Entries from which on a table has indexes; below, a search through all of them is as fast."""

PROBES = 70
"""Partitions that a search of the vector index looks into, out of the square root of the entries."""

FILTERED_PROBES = 120
"""The same where a filter leaves fewer entries in each."""

REFINED = 80
"""Candidates at least that are compared again by their exact vectors, and five times those asked for."""

TEXT_COLUMNS = ("text", "key_text")
"""What full text looks into: the reflection, and the situation (task and feedback) it answers."""

_BITMAPS = ("status", "task_type", "environment")
_TREES = ("entry_id", "gain", "iteration")
_VECTOR = "vector-of-"
_GROWTH = 4
_UNINDEXED_SHARE = 0.01
_TRAINING_PASSES, _TRAINING_ROWS = 15, 64  # of k-means, for each partition
_FOR_EVER = timedelta(days=100 * 365)


def keep_indexes(table: Table, rows: int) -> None:
    """Give a table of `rows` rows its indexes, or bring those it has up to its size.

    The partitions of the vectors are learnt again when the table has become four times as large; new rows
    are added to the indexes when a hundredth of the table is not in them. Until then searches go through
    the new rows one by one.
    """
    names = {index.name for index in table.list_indices()}
    old = next((name for name in names if name.startswith(_VECTOR)), None)
    if old is None:
        _index_columns(table)
    if old is None or rows >= _GROWTH * int(old.removeprefix(_VECTOR)):
        _index_vectors(table, rows)
        if old is not None:
            table.drop_index(old)
            table.optimize(cleanup_older_than=_FOR_EVER)
    elif table.index_stats(old).num_unindexed_rows > _UNINDEXED_SHARE * rows:
        table.optimize(cleanup_older_than=_FOR_EVER)


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

    kind = IvfRq if table.schema.field("vector").type.list_size % 8 == 0 else IvfSq
    config = kind(
        distance_type="cosine",
        num_partitions=max(1, math.isqrt(rows)),
        max_iterations=_TRAINING_PASSES,
        sample_rate=_TRAINING_ROWS,
    )
    table.create_index("vector", config=config, name=f"{_VECTOR}{rows}")
