"""Facts about Parquet files, kept between requests: which ids each holds, how many rows meet a filter.

A file is read once, and again when the store gives another object for it. A `WatchedStore` does so when the
file has changed in size or time, or was pruned.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from command_line.ui.filters import Filter
from storage.tables.parquet import TableFormat, scan_files

Files = Mapping[Path, object]
"""Files, each with the object that the store gave for it; facts about a file hold while that is the same."""
_FILE = "file"
_MOST_FILTERS = 64


class KnownFiles:
    """The files of one table. Several threads may use it."""

    def __init__(self, table: TableFormat) -> None:
        self._table = table
        self._ids: dict[str, dict[Path, tuple[object, npt.NDArray[np.uint64]]]] = {}
        self._counts: OrderedDict[tuple[Filter, ...], dict[Path, tuple[object, int]]] = OrderedDict()
        self._turn = threading.Lock()

    def holding(self, files: Files, column: str, ids: Sequence[str]) -> list[Path]:
        """The files that have a row with one of these ids. Ids are compared by hashes, so by chance there may
        be one file too many."""
        with self._turn:
            known = self._ids.setdefault(column, {})
            for found, rows in self._new(files, known, [pl.col(column).hash()]):
                known[found] = files[found], np.sort(rows.to_series().to_numpy())
            wanted = pl.Series(ids, dtype=pl.String).hash().to_numpy()
            return [path for path in files if _any_of(known[path][1], wanted)]

    def counts(self, files: Files, filters: Sequence[Filter]) -> list[int]:
        """How many rows of each file meet the filters."""
        with self._turn:
            known = self._counts.setdefault(tuple(filters), {})
            self._counts.move_to_end(tuple(filters))
            while len(self._counts) > _MOST_FILTERS:
                self._counts.popitem(last=False)
            met = pl.lit(True).and_(*(each.condition() for each in filters))
            for found, rows in self._new(files, known, [met.alias("met")]):
                known[found] = files[found], int(rows["met"].sum())
            return [known[path][1] for path in files]

    def _new(
        self, files: Files, known: Mapping[Path, tuple[object, Any]], columns: Sequence[pl.Expr]
    ) -> list[tuple[Path, pl.DataFrame]]:
        """Columns of the rows of each file that is new or has changed."""
        new = [path for path in files if path not in known or known[path][0] is not files[path]]
        rows = scan_files(new, self._table, _FILE).select(*columns, _FILE).collect()
        found = {
            Path(str(file)): part.drop(_FILE) for (file,), part in rows.group_by(_FILE, maintain_order=True)
        }
        return [(path, found.get(path, rows.clear().drop(_FILE))) for path in new]


def _any_of(held: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> bool:
    """Whether one of the wanted hashes is among the held ones, which are sorted."""
    if not len(held):
        return False
    places = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
    return bool((held[places] == wanted).any())
