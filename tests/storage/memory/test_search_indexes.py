"""The columns from which the indexes of a memory's table are built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from storage.memory.entries import MEMORY_SCHEMA, MemoryEntry, iterate_delta, write_embedded
from storage.memory.search_indexes import (
    CREDIT_STEP,
    ENTRY,
    INDEX_KEY,
    TEXT_KEY,
    credit_condition,
    index_columns,
    index_key_of,
    read_entry,
    with_index_columns,
)

Entry = Callable[..., MemoryEntry]
EAST, NORTH = np.eye(4, dtype=np.float32)[:2]


def made(tmp_path: Path, entries: list[MemoryEntry]) -> pa.Table:
    """Rows of the table for entries that all have the vector EAST."""
    write_embedded(tmp_path / "entries.parquet", entries, np.stack([EAST] * len(entries)), "made")
    rows = pa.Table.from_batches(iterate_delta(tmp_path / "entries.parquet"), schema=MEMORY_SCHEMA)
    return with_index_columns(rows)


def keys(rows: pa.Table) -> np.ndarray:
    numbers: np.ndarray = rows.column(INDEX_KEY).combine_chunks().flatten().to_numpy()
    return numbers.reshape(-1, 4 + 64).astype(float)


def test_an_entry_is_read_from_its_column_as_it_was(tmp_path: Path, entry: Entry) -> None:
    entries = [
        replace(entry(1, 'quotes " and ä', environment="lake"), credit=0.1),
        replace(entry(2), source_trajectory_id=None, parent_entry_ids=("m-000", "m-001")),
    ]
    assert [read_entry(text) for text in made(tmp_path, entries).column(ENTRY).to_pylist()] == entries


def test_the_columns_are_those_that_the_table_is_made_with(tmp_path: Path, entry: Entry) -> None:
    rows = made(tmp_path, [entry(1)])
    assert [rows.schema.field(column.name) for column in index_columns(4)] == index_columns(4)


def test_a_query_is_as_near_to_each_type_unless_it_asks_for_one(tmp_path: Path, entry: Entry) -> None:
    """A key is a vector and two codes of length 1 each. With the code of a type in the query, the product
    with the key of an entry of that type grows by 1; with other entries it grows only by the product of the
    codes of the two types."""
    lake = [entry(1, task_type="lake", environment="grid"), entry(2, task_type="lake", environment=None)]
    rows = keys(made(tmp_path, [*lake, entry(3, task_type="boxes", environment="grid")]))
    assert np.linalg.norm(rows, axis=1) == pytest.approx(math.sqrt(3), abs=2e-3)
    assert rows @ index_key_of(EAST, None, None) == pytest.approx(1, abs=2e-3)
    assert rows @ index_key_of(NORTH, None, None) == pytest.approx(0, abs=2e-3)
    typed = rows @ index_key_of(EAST, "lake", None)
    assert typed[:2] == pytest.approx(2, abs=4e-3)
    assert typed[2] < 1.6
    both = rows @ index_key_of(NORTH, "lake", "grid")
    assert both[0] == pytest.approx(2, abs=4e-3)
    assert (both[1:] < 1.6).all()


def test_equal_texts_of_a_task_type_have_equal_keys(tmp_path: Path, entry: Entry) -> None:
    rows = made(tmp_path, [entry(1, text="a"), entry(2, "a box", text="a"), entry(3, text="b")])
    keys_of_texts = rows.column(TEXT_KEY).to_pylist()
    assert keys_of_texts[0] == keys_of_texts[1] == entry(1, text="a").text_key != keys_of_texts[2]


@pytest.mark.parametrize(
    ("minimum", "condition"),
    [
        (0.5, "credit_step >= 32"),
        (-1.0, "credit_step >= -64"),
        (0.51, "(credit_step > 32 OR (credit >= 0.51 AND credit < 0.515625))"),
        (7.0, "credit >= 7.0"),
        (-7.0, "(credit_step > -128 OR (credit >= -7.0 AND credit < -1.984375))"),
    ],
)
def test_a_credit_is_asked_for_by_steps_of_a_64th(minimum: float, condition: str) -> None:
    assert credit_condition(minimum) == condition


def test_asking_by_steps_finds_what_asking_by_the_credit_does(tmp_path: Path, entry: Entry) -> None:
    credits = [-9.0, -2.0, -1.984375, -0.51, -1e-9, 0.0, 0.1, 0.5, 0.505, 0.515625, 1.0, 1.99, 2.0, 5.0]
    entries = [entry(number, credit=credit) for number, credit in enumerate(credits)]
    frame = pl.from_arrow(made(tmp_path, entries).select(["credit", CREDIT_STEP]))
    assert isinstance(frame, pl.DataFrame)
    for minimum in (*credits, -20.0, -3.0, -0.3, 0.3, 0.507, 1.985, 3.0, 20.0):
        expected = [credit for credit in credits if credit >= minimum]
        found = frame.filter(pl.sql_expr(credit_condition(minimum)))
        assert found["credit"].to_list() == expected, minimum
