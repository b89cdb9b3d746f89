from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import StoreError
from storage.tables.parquet import TableFormat, read_rows, scan_files, write_rows

VERSION_1 = TableFormat("things", 1, pa.schema([pa.field("id", pa.string(), nullable=False)]))
VERSION_2 = TableFormat(
    "things",
    2,
    pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("values", pa.list_(pa.float32()))]),
    dictionary=("id",),
    float_lists=("values.list.element",),
)


def test_older_files_are_read_with_nulls(tmp_path: Path) -> None:
    old, new = tmp_path / "old.parquet", tmp_path / "new.parquet"
    assert write_rows(old, [{"id": "a"}], VERSION_1) == 1
    assert write_rows(new, [{"id": "b", "values": [0.5]}], VERSION_2) == 1
    assert list(read_rows([old, new], VERSION_2)) == [
        {"id": "a", "values": None},
        {"id": "b", "values": (0.5,)},
    ]
    assert scan_files([old, new], VERSION_2).collect().rows() == [("a", None), ("b", [0.5])]


def test_newer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.parquet"
    write_rows(path, [], VERSION_2)
    with pytest.raises(StoreError, match="has version 2 of the things schema and this program reads up to 1"):
        scan_files([path], VERSION_1)


def test_unknown_columns_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "strange.parquet"
    schema = pa.schema([pa.field("id", pa.string()), pa.field("colour", pa.string())])
    table = pa.table({"id": ["a"], "colour": ["red"]}, schema=schema)
    pq.write_table(table.replace_schema_metadata({"table": "things", "schema_version": "1"}), path)
    with pytest.raises(StoreError, match="columns that the things schema does not know: colour"):
        list(read_rows([path], VERSION_1))
    with pytest.raises(StoreError, match="columns that the things schema does not know: colour"):
        scan_files([path], VERSION_1)


def test_other_files_are_refused(tmp_path: Path) -> None:
    foreign, text = tmp_path / "foreign.parquet", tmp_path / "text.parquet"
    pq.write_table(pa.table({"id": ["a"]}), foreign)
    text.write_text("id\na\n")
    with pytest.raises(StoreError, match="is not a things file"):
        scan_files([foreign], VERSION_1)
    with pytest.raises(StoreError, match="is not Parquet"):
        scan_files([text], VERSION_1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*gone\.parquet"):
        list(read_rows([tmp_path / "gone.parquet"], VERSION_1))


def test_no_files_are_an_empty_frame_with_all_columns() -> None:
    frame = scan_files([], VERSION_2).collect()
    assert frame.schema == {"id": pl.String, "values": pl.List(pl.Float32)}
    assert frame.height == 0


def test_rows_are_grouped_and_encoded_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "many.parquet"
    rows = ({"id": "a", "values": [float(number)]} for number in range(4500))
    assert write_rows(path, rows, VERSION_2) == 4500
    footer = pq.read_metadata(path)
    assert [footer.row_group(group).num_rows for group in range(footer.num_row_groups)] == [2000, 2000, 500]
    identifier, values = footer.row_group(0).column(0), footer.row_group(0).column(1)
    assert identifier.compression == values.compression == "ZSTD"
    assert "RLE_DICTIONARY" in identifier.encodings
    assert "BYTE_STREAM_SPLIT" in values.encodings
    assert footer.metadata[b"table"] == b"things"
