"""The columns from which the indexes of a memory's table are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.memory.entries import MEMORY_SCHEMA, MemoryEntry, iterate_delta, write_embedded
from storage.memory.search_indexes import ENTRY, INDEX_COLUMNS, TEXT_KEY, read_entry, with_index_columns

Entry = Callable[..., MemoryEntry]
EAST = np.eye(4, dtype=np.float32)[0]


def made(tmp_path: Path, entries: list[MemoryEntry]) -> pa.Table:
    """Rows of the table for entries that all have the vector EAST."""
    write_embedded(tmp_path / "entries.parquet", entries, np.stack([EAST] * len(entries)), "made")
    rows = pa.Table.from_batches(iterate_delta(tmp_path / "entries.parquet"), schema=MEMORY_SCHEMA)
    return with_index_columns(rows)


def test_an_entry_is_read_from_its_column_as_it_was(tmp_path: Path, entry: Entry) -> None:
    entries = [
        replace(entry(1, 'quotes " and ä', environment="lake"), credit=0.1),
        replace(entry(2), source_trajectory_id=None, parent_entry_ids=("m-000", "m-001")),
    ]
    assert [read_entry(text) for text in made(tmp_path, entries).column(ENTRY).to_pylist()] == entries


def test_the_columns_are_those_that_the_table_is_made_with(tmp_path: Path, entry: Entry) -> None:
    rows = made(tmp_path, [entry(1)])
    assert [rows.schema.field(column.name) for column in INDEX_COLUMNS] == INDEX_COLUMNS


def test_equal_texts_of_a_task_type_have_equal_keys(tmp_path: Path, entry: Entry) -> None:
    rows = made(tmp_path, [entry(1, text="a"), entry(2, "a box", text="a"), entry(3, text="b")])
    keys_of_texts = rows.column(TEXT_KEY).to_pylist()
    assert keys_of_texts[0] == keys_of_texts[1] == entry(1, text="a").text_key != keys_of_texts[2]
