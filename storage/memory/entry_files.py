"""Entries in Parquet, read by row numbers: only the row groups that hold these rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import StoreError
from storage.memory.entries import MEMORY, MEMORY_SCHEMA
from storage.tables.parquet import require_format

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
