"""The entries of a memory version: as a list, sorted and counted by columns that are kept, and as a map,
points in a plane, near each other if their situations are similar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from command_line.memory.run import RunMemory
from command_line.ui.cached import Sealed
from command_line.ui.filters import AddressError, finite
from command_line.ui.rows import PAGE_ROWS, RowPage, page_count, require_few
from storage.artifacts.recipe import digest
from storage.memory.chain import held_rows
from storage.memory.entries import EntryFiles, Rows

Sort = Literal["credit", "support", "retrievals", "last_iteration"]
_KEPT = (
    "entry_id", "task_type", "support", "credit", "credit_count", "retrievals", "iteration", "last_iteration",
)  # fmt: skip
_TEXTS = ("entry_id", "kind", "text", "task_text", "feedback")

Places = npt.NDArray[np.int64]
"""Places of entries in `HeldRows.rows`."""


@dataclass(frozen=True)
class HeldRows:
    """The entries that a memory version holds, in the order of their addition, without texts and vectors.

    `numbers` are the numbers of their rows in `files`.
    """

    rows: pl.DataFrame
    numbers: Rows
    files: EntryFiles
    task_types: Sequence[str]


class EntryList:
    """The entries of a memory version, for showing them page by page."""

    def __init__(self, sealed: Sealed, memory: RunMemory) -> None:
        self._sealed, self._memory = sealed, memory
        # When a user is forgotten, files of the same version get other names.
        paths = [str(path) for delta in memory.deltas for path in delta.entry_files]
        self._key = f"{memory.version} {digest(paths)}"
        self.held = sealed.get(self._key, "rows", self._read)

    def places(self, task_type: str, among: Places | None) -> npt.NDArray[np.bool_]:
        """Which entries are of a task type (empty for all) and at one of these places (None for all).

        Each call verifies that the files are undamaged, also if their content is kept.
        """
        _ = self._memory.deltas
        chosen = np.ones(self.held.rows.height, np.bool_)
        if among is not None:
            chosen[:] = False
            chosen[among] = True
        if task_type:
            chosen &= (self.held.rows["task_type"] == task_type).to_numpy()
        return chosen

    def page(self, chosen: npt.NDArray[np.bool_], sort: Sort, page: int, *, rising: bool) -> RowPage:
        """A page of the chosen entries; ties are in the order of their addition."""
        ordered = self._ordered(chosen, sort, rising)
        number = min(max(1, page), page_count(len(ordered)))
        found = self._rows(ordered[(number - 1) * PAGE_ROWS : number * PAGE_ROWS])
        return RowPage(len(ordered), number, found)

    def whole(self, chosen: npt.NDArray[np.bool_], sort: Sort, *, rising: bool) -> list[dict[str, Any]]:
        """All chosen entries, in the same order. Raises InputError for more than `MOST_ROWS`."""
        ordered = self._ordered(chosen, sort, rising)
        require_few(len(ordered))
        return self._rows(ordered)

    def map(self) -> MemoryMap:
        """The map of the entries; it is made once."""
        return self._sealed.get(self._key, "map", lambda: _map(self.held))

    def _ordered(self, chosen: npt.NDArray[np.bool_], sort: Sort, rising: bool) -> Places:
        order = self._sealed.get(
            self._key, f"by {sort}, {rising}", lambda: _order(self.held.rows, sort, rising)
        )
        return order[chosen[order]]

    def _rows(self, places: Places) -> list[dict[str, Any]]:
        texts = pl.from_arrow(self.held.files.read(np.sort(self.held.numbers[places]), _TEXTS))
        assert isinstance(texts, pl.DataFrame)
        return self.held.rows[places].join(texts, on="entry_id", how="left", maintain_order="left").to_dicts()

    def _read(self) -> HeldRows:
        rows = (
            self._memory.held().select(_KEPT).with_columns(pl.col("task_type").cast(pl.Categorical)).collect()
        )
        kinds = rows["task_type"].unique().cast(pl.String).sort()
        paths = [path for delta in self._memory.deltas for path in delta.entry_files]
        return HeldRows(rows, held_rows(self._memory.deltas), EntryFiles(paths), kinds.to_list())


def _order(rows: pl.DataFrame, sort: Sort, rising: bool) -> Places:
    values = rows[sort].to_numpy()
    return np.argsort(values if rising else -values, kind="stable")


DECIMALS = 4
"""Decimals of a point's coordinates: rounded, they are the same on every machine that computes them."""


@dataclass(frozen=True)
class Projection:
    """The points of vectors, [vector, 2], and the shares of the vectors' variance along the two axes."""

    points: npt.NDArray[np.float64]
    shares: tuple[float, float]


def project(vectors: npt.NDArray[np.float32]) -> Projection:
    """The two principal components of vectors, [vector, dimension].

    The sign of an axis makes its largest component positive, so that equal vectors always give equal points.
    An axis without variance gives 0.
    """
    points = np.zeros((len(vectors), 2))
    if len(vectors) < 2:
        return Projection(points, (0.0, 0.0))
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    # The covariance matrix is small, since there are a few hundred dimensions.
    variances, directions = np.linalg.eigh(centred.T @ centred)
    total = float(variances.sum())
    shares = [0.0, 0.0]
    for place, axis in enumerate(directions.T[::-1][:2]):
        variance = max(0.0, float(variances[-1 - place]))
        if variance <= 1e-12 * total or not total:
            continue
        points[:, place] = centred @ (axis * np.sign(axis[np.argmax(np.abs(axis))]))
        shares[place] = variance / total
    # Adding 0 turns -0.0 into 0.0.
    return Projection(np.round(points, DECIMALS) + 0.0, (shares[0], shares[1]))


MOST_POINTS = 10_000
"""Most entries on a map. For a larger memory it shows every n-th, in the order in which they were added."""

Colour = Literal["credit", "iteration"]
COLOURS: dict[Colour, str] = {"credit": "credit", "iteration": "iteration"}


@dataclass(frozen=True)
class MemoryMap(Projection):
    """The map of a memory version; `places` are the places of its points' entries in `HeldRows.rows`."""

    places: Places


@dataclass(frozen=True)
class Span:
    """A part of one axis, both ends included."""

    low: float
    high: float

    def holds(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which of the values lie in the span."""
        return (values >= self.low) & (values <= self.high)


def _map(held: HeldRows) -> MemoryMap:
    count = held.rows.height
    shown = min(count, MOST_POINTS)
    places = np.arange(shown, dtype=np.int64) * count // max(1, shown)
    found = project(held.files.vectors(held.numbers[places]))
    return MemoryMap(found.points, found.shares, places)


def places_within(drawn: MemoryMap, across: Span | None, up: Span | None) -> Places:
    """The places of the entries in a rectangle; an axis without a span does not restrict."""
    inside = np.ones(len(drawn.places), np.bool_)
    for axis, span in enumerate((across, up)):
        if span is not None:
            inside &= span.holds(drawn.points[:, axis])
    return drawn.places[inside]


def read_span(name: str, text: str) -> Span | None:
    """A part of an axis in the form of an address, `-0.2..0.4`; None for an empty text.

    Raises AddressError for a text that is not a range.
    """
    if not text:
        return None
    first, _, last = text.partition("..")
    low, high = finite(first), finite(last)
    if low is None or high is None:
        raise AddressError(f"{name}={text}: give a range on the map, such as -0.2..0.4.")
    return Span(min(low, high), max(low, high))
