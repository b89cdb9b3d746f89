"""Row to row: the graph of a store's trajectories, memory entries and SFT rows, built from their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.lineage.rows import LineageRows, RowKind

_KINDS: tuple[RowKind, ...] = ("trajectory", "memory_entry", "sft_row")
_COLUMNS: dict[RowKind, tuple[str, ...]] = {
    "trajectory": ("trajectory_id", "role", "parent_trajectory_id", "memory_entry_ids"),
    "memory_entry": ("entry_id", "source_trajectory_id", "parent_entry_ids"),
    "sft_row": ("sft_row_id", "trajectory_id"),
}
_RELATIONS: tuple[tuple[str, str], ...] = (
    ("attempt it reflects on", "reflection on it"),
    ("what it followed", "attempt that followed it"),
    ("parent", "child"),
    ("memory entry it saw", "trajectory that saw it"),
    ("reflection it holds", "memory entry that holds it"),
    ("parent entry", "entry that names it as parent"),
    ("attempt that succeeded", "SFT row made of it"),
)
"""What an origin is to the row that came from it, and the other way round."""
_ROLES = {"reflection": 0, "second_attempt": 1}
_PARENT = 2

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowStep:
    """How a row was reached: `depth` steps from the start, from the row `via`, to which it is `relation`."""

    kind: RowKind
    id: str
    depth: int
    relation: str
    via: str


class RowLinks:
    """All links between the rows of `LineageRows`, in memory: some hundred bytes a row.

    Rows are numbered and the links lie sorted in arrays, so that a walk costs by what it reaches and not by
    the length of the history.
    """

    def __init__(self, rows: LineageRows) -> None:
        tables = {kind: rows.scan(kind, _COLUMNS[kind]).collect() for kind in _KINDS}
        named = [
            table.select(id=pl.col(_COLUMNS[kind][0]), kind=pl.lit(kind, pl.Enum(_KINDS)))
            for kind, table in tables.items()
        ]
        # A row that was brought along lies in several artifacts and is one row.
        self._rows = pl.concat(named).unique(maintain_order=True).with_row_index("number")
        links = _links(tables)
        for end in ("origin", "derived"):
            numbers = self._rows.rename({"id": end, "kind": f"{end}_kind", "number": f"{end}_number"})
            links = links.join(numbers, on=[end, f"{end}_kind"])
        origins = links["origin_number"].to_numpy().astype(np.int64)
        derived = links["derived_number"].to_numpy().astype(np.int64)
        relations = links["relation"].to_numpy()
        self._from_origin = _Adjacency(origins, derived, relations, self._rows.height)
        self._to_origin = _Adjacency(derived, origins, relations, self._rows.height)

    def origins(self, kind: RowKind, row_id: str, depth: int | None = None) -> list[RowStep]:
        """Rows that a row came from, the nearest first, at most `depth` steps away."""
        return self._walk(self._to_origin, kind, row_id, depth, 0)

    def derived(self, kind: RowKind, row_id: str, depth: int | None = None) -> list[RowStep]:
        """Rows that came from a row, the nearest first, at most `depth` steps away."""
        return self._walk(self._from_origin, kind, row_id, depth, 1)

    def _walk(
        self, links: _Adjacency, kind: RowKind, row_id: str, depth: int | None, side: int
    ) -> list[RowStep]:
        is_start = (pl.col("id") == row_id) & (pl.col("kind") == kind)
        start = self._rows.filter(is_start)["number"].to_numpy().astype(np.int64)
        reached, via, relations, depths = links.walk(start, depth)
        found, origin = self._rows[reached], self._rows[via]
        return [
            RowStep(found_kind, found_id, steps, _RELATIONS[relation][side], origin_id)
            for found_kind, found_id, steps, relation, origin_id in zip(
                found["kind"], found["id"], depths.tolist(), relations.tolist(), origin["id"], strict=True
            )
        ]


class _Adjacency:
    """Links by the row that they start from (compressed sparse rows)."""

    def __init__(
        self, starts: Numbers, ends: Numbers, relations: npt.NDArray[np.generic], count: int
    ) -> None:
        order = np.argsort(starts, kind="stable")
        self._ends, self._relations = ends[order], relations[order]
        self._offsets = np.searchsorted(starts[order], np.arange(count + 1))
        self._count = count

    def walk(
        self, start: Numbers, depth: int | None
    ) -> tuple[Numbers, Numbers, npt.NDArray[np.generic], Numbers]:
        """Breadth first: rows reached, the row each was reached from, by what relation, in how many steps."""
        seen = np.zeros(self._count, dtype=bool)
        seen[start] = True
        level, distance = start, 0
        found: list[tuple[Numbers, Numbers, npt.NDArray[np.generic], Numbers]] = []
        while len(level) and (depth is None or distance < depth):
            distance += 1
            counts = self._offsets[level + 1] - self._offsets[level]
            first = np.repeat(self._offsets[level] - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
            places = first + np.arange(len(first))
            ends, via = self._ends[places], np.repeat(level, counts)
            new, firsts = np.unique(ends, return_index=True)
            kept = np.sort(firsts[~seen[new]])
            level = ends[kept]
            seen[level] = True
            found.append((level, via[kept], self._relations[places[kept]], np.full(len(kept), distance)))
        if not found:
            nothing = np.empty(0, dtype=np.int64)
            return nothing, nothing, nothing, nothing
        reached, via, relations, depths = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return reached, via, relations, depths


def _links(tables: Mapping[RowKind, pl.DataFrame]) -> pl.DataFrame:
    """(origin, origin_kind, derived, derived_kind, relation) of every link that the columns tell."""
    trajectories, entries, dataset = (tables[kind] for kind in _KINDS)
    by_role = pl.col("role").replace_strict(_ROLES, default=_PARENT, return_dtype=pl.Int8)
    return pl.concat(
        [
            _link(trajectories, "parent_trajectory_id", "trajectory", "trajectory", by_role),
            _link(trajectories, "memory_entry_ids", "memory_entry", "trajectory", 3),
            _link(entries, "source_trajectory_id", "trajectory", "memory_entry", 4),
            _link(entries, "parent_entry_ids", "memory_entry", "memory_entry", 5),
            _link(dataset, "trajectory_id", "trajectory", "sft_row", 6),
        ]
    )


def _link(
    table: pl.DataFrame, column: str, origin: RowKind, derived: RowKind, relation: int | pl.Expr
) -> pl.DataFrame:
    named = table.select(
        origin=pl.col(column),
        derived=pl.col(table.columns[0]),
        relation=relation if isinstance(relation, pl.Expr) else pl.lit(relation, pl.Int8),
    )
    if isinstance(named.schema["origin"], pl.List):
        named = named.explode("origin")
    kinds = pl.Enum(_KINDS)
    return named.drop_nulls("origin").with_columns(
        origin_kind=pl.lit(origin, kinds), derived_kind=pl.lit(derived, kinds)
    )
