"""Facts about Parquet files, kept between requests: which ids each holds, how many rows meet a filter.

A file is read once, and again when the store gives another object for it. A `WatchedStore` does so when the
file has changed in size or time, or was pruned.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from command_line.ui.filters import Filter
from storage.tables.parquet import TableFormat, scan_files
from storage.tables.scored import with_measured
from storage.tables.trajectories import TRAJECTORIES

Files = Mapping[Path, object]
"""Files, each with the object that the store gave for it; facts about a file hold while that is the same."""
_FILE = "file"
_MOST_FILTERS = 64
_NOT_READ = (None, 0)


class KnownFiles:
    """The files of one table. Several threads may use it."""

    def __init__(self, table: TableFormat) -> None:
        self._table = table
        self._ids: dict[str, _HeldIds] = {}
        self._counts: OrderedDict[tuple[Filter, ...], dict[Path, tuple[object, int]]] = OrderedDict()
        self._turn = threading.Lock()

    def holding(self, files: Files, column: str, ids: Sequence[str]) -> list[Path]:
        """The files that have a row with one of these ids. Ids are compared by hashes, so by chance there may
        be one file too many."""
        with self._turn:
            held = self._ids.setdefault(column, _HeldIds())
            new = held.missing(files)
            if new:
                rows = self._rows(new, [pl.col(column).hash()])
                held.add(new, {path: _short(found.to_series()) for path, found in rows.items()})
            return held.holding(files, _short(pl.Series(ids, dtype=pl.String).hash()))

    def counts(self, files: Files, filters: Sequence[Filter]) -> list[int]:
        """How many rows of each file meet the filters."""
        with self._turn:
            known = self._counts.setdefault(tuple(filters), {})
            self._counts.move_to_end(tuple(filters))
            while len(self._counts) > _MOST_FILTERS:
                self._counts.popitem(last=False)
            new = _not_read(files, known)
            if new:
                met = pl.lit(True).and_(*(each.condition() for each in filters))
                rows = self._rows(new, [met.alias("met")])
                known.update({path: (file, int(rows[path]["met"].sum())) for path, file in new.items()})
            return [known[path][1] for path in files]

    def _rows(self, files: Files, columns: Sequence[pl.Expr]) -> dict[Path, pl.DataFrame]:
        """Columns of the rows of each file."""
        scanned = scan_files(list(files), self._table, _FILE)
        scanned = with_measured(scanned) if self._table is TRAJECTORIES else scanned
        rows = scanned.select(*columns, _FILE).collect()
        found = {
            Path(str(file)): part.drop(_FILE) for (file,), part in rows.group_by(_FILE, maintain_order=True)
        }
        return {path: found.get(path, rows.clear().drop(_FILE)) for path in files}


class _HeldIds:
    """Which file has which ids: for each row the hash of its id and the number of its file, sorted by hash.

    One search then finds the files of an id, however many files there are.
    """

    def __init__(self) -> None:
        self._files: dict[Path, tuple[object, int]] = {}
        self._hashes = np.empty(0, np.uint32)
        self._numbers = np.empty(0, np.uint32)
        self._next = 0

    def missing(self, files: Files) -> dict[Path, object]:
        """Those of the files that are new or have changed."""
        return _not_read(files, self._files)

    def add(self, files: Files, hashes: Mapping[Path, npt.NDArray[np.uint32]]) -> None:
        """Take these hashes for these files; what was held for them before is dropped."""
        old = [self._files[path][1] for path in files if path in self._files]
        kept = ~np.isin(self._numbers, np.array(old, np.uint32))
        all_hashes, all_numbers = [self._hashes[kept]], [self._numbers[kept]]
        for path, file in files.items():
            self._files[path] = file, self._next
            all_hashes.append(hashes[path])
            all_numbers.append(np.full(len(hashes[path]), self._next, np.uint32))
            self._next += 1
        together = np.concatenate(all_hashes)
        order = np.argsort(together, kind="stable")
        self._hashes, self._numbers = together[order], np.concatenate(all_numbers)[order]

    def holding(self, files: Files, wanted: npt.NDArray[np.uint32]) -> list[Path]:
        """Those of the files that have one of the wanted hashes."""
        starts = np.searchsorted(self._hashes, wanted, "left")
        ends = np.searchsorted(self._hashes, wanted, "right")
        numbers = {
            int(number)
            for start, end in zip(starts, ends, strict=True)
            for number in self._numbers[start:end]
        }
        return [path for path in files if self._files[path][1] in numbers]


def _not_read(files: Files, known: Mapping[Path, tuple[object, int]]) -> dict[Path, object]:
    """Those of the files that are new, or have changed since they were read."""
    return {path: file for path, file in files.items() if known.get(path, _NOT_READ)[0] is not file}


def _short(hashes: pl.Series) -> npt.NDArray[np.uint32]:
    """Half of each hash: enough for a million ids, with half of the memory."""
    return (hashes.to_numpy() >> np.uint64(32)).astype(np.uint32)
