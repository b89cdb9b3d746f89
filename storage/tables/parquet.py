"""Parquet files that follow a versioned schema: byte-deterministic writing, strict reading, lazy scans."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, Self, get_args, get_type_hints

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts.manifest import TABLE_KEY
from storage.errors import StoreError, store_errors

ROW_GROUP_ROWS = 2000
_VERSION = b"schema_version"
_ARROW_SCHEMA = "ARROW:schema"
"""Key, in a footer's metadata, of the Arrow schema of the columns."""


@dataclass(frozen=True)
class TableFormat:
    """A kind of Parquet file: its columns and how they are encoded.

    `float_lists` names the columns of high-entropy float lists, `dictionary` the columns with few distinct
    values. Both name leaves by their Parquet path. In files of a lower `version`, missing columns are read as
    nulls.
    """

    name: str
    version: int
    schema: pa.Schema
    dictionary: tuple[str, ...] = ()
    float_lists: tuple[str, ...] = ()

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema with the footer's metadata: the table's name and version."""
        return self.schema.with_metadata(
            {TABLE_KEY: self.name.encode(), _VERSION: str(self.version).encode()}
        )


_KINDS = {bool: pa.bool_(), int: pa.int32(), float: pa.float32()}


def schema_of(row: type, **others: pa.DataType) -> pa.Schema:
    """The columns of a dataclass, in its order: numbers in 32 bits, tuples as lists, all else as text. Only
    what may be None may be null. `others` are the columns of other types."""

    def kind(name: str, hint: Any) -> pa.DataType:
        inner = [each for each in get_args(hint) if each not in (NoneType, ...)]
        plain = _KINDS.get(inner[0] if len(inner) == 1 else hint, pa.string())
        return others.get(name, pa.list_(plain) if ... in get_args(hint) else plain)

    hints = get_type_hints(row).items()
    return pa.schema([pa.field(name, kind(name, hint), NoneType in get_args(hint)) for name, hint in hints])


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], table: TableFormat) -> int:
    """Write rows (column -> value) and return how many. Equal rows give equal bytes."""
    remaining = iter(rows)
    with RowWriter(path, table) as writer:
        while chunk := list(islice(remaining, ROW_GROUP_ROWS)):
            writer.add(chunk)
    return writer.count


class RowWriter:
    """Writes a file row group by row group; use it in a `with` block. `count` is the number of rows so far.

    Raises StoreError when the file cannot be written.
    """

    def __init__(self, path: Path, table: TableFormat) -> None:
        self._path, self._table = path, table
        self.count = 0
        with store_errors("write", path):
            self._writer = pq.ParquetWriter(
                path,
                table.arrow_schema,
                compression="zstd",
                compression_level=3,
                use_dictionary=list(table.dictionary),
                column_encoding=dict.fromkeys(table.float_lists, "BYTE_STREAM_SPLIT") or None,
                write_statistics=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with store_errors("write", self._path):
            self._writer.close()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows (column -> value) as one row group; at most `ROW_GROUP_ROWS`."""
        self.add_table(arrow_table(rows, self._table))

    def add_table(self, rows: pa.Table) -> None:
        """Write rows, of which there may be none, as row groups of at most `ROW_GROUP_ROWS`."""
        with store_errors("write", self._path):
            self._writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        self.count += len(rows)


def arrow_table(rows: Sequence[Mapping[str, Any]], table: TableFormat) -> pa.Table:
    """Rows (column -> value) in the columns of a kind of file."""
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in table.schema]
    return pa.Table.from_arrays(columns, schema=table.arrow_schema)


def read_rows(paths: Sequence[Path], table: TableFormat) -> Iterator[dict[str, Any]]:
    """Rows of files, in order. Lists become tuples; missing columns are None.

    Raises StoreError for a file that is not in this format.
    """
    for path in paths:
        require_format(path, table)
        with store_errors("read", path):
            content = pq.ParquetFile(path).read()
        absent = {name: None for name in table.schema.names if name not in content.column_names}
        for row in content.to_pylist():
            yield absent | {
                name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
            }


def scan_files(paths: Sequence[Path], table: TableFormat, path_column: str | None = None) -> pl.LazyFrame:
    """A lazy frame over exactly these files, with the table's columns whatever the files' version.

    `path_column` adds a column of that name with the path of each row's file.

    Raises StoreError for a file that is not in this format.
    """
    _require_formats(paths, table)
    schema = pl.Schema(table.schema)
    if not paths:
        added = {} if path_column is None else {path_column: pl.String()}
        return pl.LazyFrame(schema={**schema, **added})
    return pl.scan_parquet(
        list(paths),
        schema=schema,
        missing_columns="insert",
        glob=False,
        include_file_paths=path_column,
    )


def _require_formats(paths: Sequence[Path], table: TableFormat) -> None:
    """Like `require_format` for each file; equal footers are checked only once.

    A footer's metadata holds the format, its version and the Arrow schema. Reading only the metadata is much
    faster than opening the file.
    """
    known: set[frozenset[tuple[str, str]]] = set()
    for path in paths:
        with store_errors("read", path):
            try:
                metadata = frozenset(pl.read_parquet_metadata(path).items())
            except pl.exceptions.ComputeError as error:
                raise StoreError(f"{path} is not Parquet: {error}") from error
        if metadata not in known:
            require_format(path, table)
            if any(key == _ARROW_SCHEMA for key, _ in metadata):
                known.add(metadata)


def require_format(path: Path, table: TableFormat) -> None:
    """Raise StoreError for a file that is not in this format, or in a later version of it."""
    with store_errors("read", path):
        try:
            footer = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise StoreError(f"{path} is not Parquet: {error}") from error
    metadata = footer.schema_arrow.metadata or {}
    if metadata.get(TABLE_KEY) != table.name.encode():
        raise StoreError(f"{path} is not a {table.name} file.")
    version = int(metadata[_VERSION])
    if version > table.version:
        raise StoreError(
            f"{path} has version {version} of the {table.name} schema and this program reads up to "
            f"{table.version}; use a newer program."
        )
    unknown = [name for name in footer.schema_arrow.names if name not in table.schema.names]
    if unknown:
        raise StoreError(
            f"{path} has columns that the {table.name} schema does not know: {', '.join(unknown)}."
        )
