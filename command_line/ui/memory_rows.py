"""The entries of a memory version as a list, sorted and counted by columns that are kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from command_line.memory.run import RunMemory
from command_line.ui.rows import PAGE_ROWS
from command_line.ui.sealed import Sealed
from storage.memory.chain import held_rows
from storage.memory.entry_files import EntryFiles, Rows

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


@dataclass(frozen=True)
class EntryPage:
    """One page of the chosen entries, and the number of all chosen ones."""

    count: int
    page: int
    entries: Sequence[dict[str, Any]]

    @property
    def pages(self) -> int:
        return max(1, -(-self.count // PAGE_ROWS))


class EntryList:
    """The entries of a memory version, for showing them page by page."""

    def __init__(self, sealed: Sealed, memory: RunMemory) -> None:
        self._sealed, self._memory = sealed, memory
        self.held = sealed.get(memory.version, "rows", self._read)

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

    def page(self, chosen: npt.NDArray[np.bool_], sort: Sort, page: int, *, rising: bool) -> EntryPage:
        """A page of the chosen entries; ties are in the order of their addition."""
        order = self._sealed.get(
            self._memory.version, f"by {sort}, {rising}", lambda: _order(self.held.rows, sort, rising)
        )
        ordered = order[chosen[order]]
        number = min(max(1, page), max(1, -(-len(ordered) // PAGE_ROWS)))
        places = ordered[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
        shown = self.held.rows[places]
        texts = pl.from_arrow(self.held.files.read(np.sort(self.held.numbers[places]), _TEXTS))
        assert isinstance(texts, pl.DataFrame)
        found = shown.join(texts, on="entry_id", how="left", maintain_order="left")
        return EntryPage(len(ordered), number, found.to_dicts())

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
