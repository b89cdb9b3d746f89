"""The map of a memory: its entries as points in a plane, near each other if their situations are similar."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from command_line.ui.memory_rows import EntryList, Places
from command_line.ui.projection import project
from command_line.ui.sealed import Sealed
from storage.errors import InputError

MOST_POINTS = 10_000
"""Most entries on a map. For a larger memory it shows every n-th, in the order in which they were added."""

Colour = Literal["credit", "iteration"]
COLOURS: dict[Colour, str] = {"credit": "credit", "iteration": "iteration"}


@dataclass(frozen=True)
class MemoryMap:
    """The map of a memory version.

    `points` are its points, [entry, 2]; `places` are the places of their entries in `HeldRows.rows`; `shares`
    are the shares of the vectors' variance along the two axes.
    """

    places: Places
    points: npt.NDArray[np.float64]
    shares: tuple[float, float]


@dataclass(frozen=True)
class Span:
    """A part of one axis, both ends included."""

    low: float
    high: float

    def holds(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which of the values lie in the span."""
        return (values >= self.low) & (values <= self.high)


def memory_map(sealed: Sealed, version: str, entries: EntryList) -> MemoryMap:
    """The map of a memory version; it depends only on the version, and is made once."""

    def make() -> MemoryMap:
        count = entries.held.rows.height
        shown = min(count, MOST_POINTS)
        places = np.arange(shown, dtype=np.int64) * count // max(1, shown)
        found = project(entries.held.files.vectors(entries.held.numbers[places]))
        return MemoryMap(places, found.points, found.shares)

    return sealed.get(version, "map", make)


def places_within(drawn: MemoryMap, across: Span | None, up: Span | None) -> Places:
    """The places of the entries in a rectangle; an axis without a span does not restrict."""
    inside = np.ones(len(drawn.places), np.bool_)
    for axis, span in enumerate((across, up)):
        if span is not None:
            inside &= span.holds(drawn.points[:, axis])
    return drawn.places[inside]


def read_span(name: str, text: str) -> Span | None:
    """A part of an axis in the form of an address, `-0.2..0.4`; None for an empty text.

    Raises InputError for a text that is not a range.
    """
    if not text:
        return None
    first, _, last = text.partition("..")
    try:
        low, high = float(first), float(last)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"{name}={text}: give a range on the map, such as -0.2..0.4.")
    return Span(min(low, high), max(low, high))
