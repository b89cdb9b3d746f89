from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage.errors import InputError
from storage.memory.entries import (
    MEMORY_SCHEMA,
    Embedder,
    MemoryEntry,
    entries_digest,
    iterate_delta,
    scan_deltas,
    write_delta,
    write_embedded,
)

Entry = Callable[..., MemoryEntry]


def read_delta(path: Path) -> pa.Table:
    return pa.Table.from_batches(iterate_delta(path), schema=MEMORY_SCHEMA)


def test_the_schema_has_the_entry_its_vector_and_its_model() -> None:
    names = {field.name for field in fields(MemoryEntry)}
    assert set(MEMORY_SCHEMA.names) == names | {"vector", "embedding_model"}


def test_a_delta_holds_the_embedding_of_the_key(entry: Entry, embedder: Embedder, tmp_path: Path) -> None:
    entries = [entry(1, "a lake", parent_entry_ids=("m-000",)), entry(2, "a box")]
    assert write_delta(tmp_path / "one.parquet", entries, embedder) == 2
    rows = read_delta(tmp_path / "one.parquet").to_pylist()
    assert rows[0]["parent_entry_ids"] == ["m-000"]
    assert rows[1]["embedding_model"] == embedder.embedding_model
    assert np.array_equal(np.float32(rows[1]["vector"]), embedder.embed(["a box"])[0])
    write_delta(tmp_path / "two.parquet", entries, embedder)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    scan = scan_deltas([tmp_path / "one.parquet"]).select("entry_id")
    assert scan.collect()["entry_id"].to_list() == ["m-001", "m-002"]


def test_two_entries_with_one_id_are_refused(entry: Entry, embedder: Embedder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than once: m-001"):
        write_delta(tmp_path / "one.parquet", [entry(1), entry(2), entry(1)], embedder)


@pytest.mark.parametrize("wrong", [0.0, np.nan, np.inf])
def test_a_vector_that_points_nowhere_is_refused(entry: Entry, tmp_path: Path, wrong: float) -> None:
    vectors = np.array([[1, 0], [wrong, 0]], np.float32)
    with pytest.raises(InputError, match=rf"model broken gave .* {wrong} for the text 'a box'"):
        write_embedded(tmp_path / "one.parquet", [entry(1, "a lake"), entry(2, "a box")], vectors, "broken")
    assert not (tmp_path / "one.parquet").exists()


def test_the_digest_is_of_rows_not_of_their_order(entry: Entry, embedder: Embedder, tmp_path: Path) -> None:
    def digest(*entries: MemoryEntry) -> str:
        write_delta(tmp_path / "rows.parquet", entries, embedder)
        return entries_digest(read_delta(tmp_path / "rows.parquet"))

    assert digest(entry(1), entry(2)) == digest(entry(2), entry(1))
    assert digest(entry(1), entry(2)) != digest(entry(1), entry(2, text="another"))
    assert digest(entry(1), entry(2)) != digest(entry(1), entry(2, key_text="another"))
    assert entries_digest(MEMORY_SCHEMA.empty_table()) != digest(entry(1))
    both = digest(entry(1), entry(2))
    whole = read_delta(tmp_path / "rows.parquet")
    [batch] = whole.to_batches()
    assert entries_digest([batch.slice(1, 1), batch.slice(0, 0), batch.slice(0, 1)]) == both


def test_entries_that_say_the_same_of_one_task_type_have_one_key(entry: Entry) -> None:
    said = entry(1, text="go right", task_type="lake").text_key
    assert entry(2, "another situation", text="go right", task_type="lake").text_key == said
    assert entry(3, text="go left", task_type="lake").text_key != said
    assert entry(4, text="go right", task_type="pond").text_key != said
