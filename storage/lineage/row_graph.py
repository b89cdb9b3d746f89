"""Row to row: the graph of a store's trajectories, memory entries and SFT rows, built from their columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.lineage.graph import holds_rows
from storage.lineage.rows import LineageRows, RowKind

_KINDS: tuple[RowKind, ...] = ("trajectory", "memory_entry", "sft_row")
LINK_COLUMNS: Mapping[RowKind, tuple[str, ...]] = {
    "trajectory": ("trajectory_id", "parent_trajectory_id", "memory_entry_ids"),
    "memory_entry": ("entry_id", "source_trajectory_id", "parent_entry_ids"),
    "sft_row": ("sft_row_id", "trajectory_id"),
}
"""The columns that links are read from; the first is the row's id."""
_RELATIONS: tuple[tuple[str, str], ...] = (
    ("trajectory it followed", "trajectory that followed it"),
    ("memory entry it saw", "trajectory that saw it"),
    ("trajectory it was taken from", "memory entry taken from it"),
    ("parent entry", "entry that names it as parent"),
    ("trajectory that it teaches", "SFT row made of it"),
)
"""The relation of an origin to the row that came from it, and that of the row to its origin."""
_PARENT, _SAW, _SOURCE, _PARENT_ENTRY, _DISTILLED = range(len(_RELATIONS))

Numbers = npt.NDArray[np.int32]


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

    Rows are numbered, one kind after the other, and the links lie sorted in arrays, so that the cost of a
    walk grows with what it reaches and not with the length of the history.
    """

    def __init__(self, rows: LineageRows) -> None:
        self._ids: dict[RowKind, pl.Series] = {}
        self._first: dict[RowKind, int] = {}
        self._count = 0
        tables: dict[RowKind, pl.DataFrame] = {}
        numbers: dict[RowKind, pl.DataFrame] = {}
        for kind in _KINDS:
            table = rows.read(kind, LINK_COLUMNS[kind]).rename({LINK_COLUMNS[kind][0]: "id"})
            ids = _each_once(table["id"])
            own = pl.DataFrame({"id": ids, "number": np.arange(len(ids), dtype=np.int32) + self._count})
            tables[kind] = (
                table.with_columns(own["number"])
                if len(ids) == len(table)
                else table.join(own, on="id", maintain_order="left")
            )
            numbers[kind], self._ids[kind], self._first[kind] = own, ids, self._count
            self._count += len(ids)
        self._links = pl.concat(_links(tables, numbers))

    def origins(self, kind: RowKind, row_id: str, depth: int | None = None) -> list[RowStep]:
        """Rows that a row came from, the nearest first, at most `depth` steps away."""
        return self._walk(self._to_origin, kind, row_id, depth, 0)

    def derived(self, kind: RowKind, row_id: str, depth: int | None = None) -> list[RowStep]:
        """Rows that came from a row, the nearest first, at most `depth` steps away."""
        return self._walk(self._from_origin, kind, row_id, depth, 1)

    @cached_property
    def _from_origin(self) -> _Adjacency:
        return self._adjacency("origin", "derived")

    @cached_property
    def _to_origin(self) -> _Adjacency:
        return self._adjacency("derived", "origin")

    def _adjacency(self, start: str, end: str) -> _Adjacency:
        starts, ends = self._links[start].to_numpy(), self._links[end].to_numpy()
        return _Adjacency(starts, ends, self._links["relation"].to_numpy(), self._count)

    def _walk(
        self, links: _Adjacency, kind: RowKind, row_id: str, depth: int | None, side: int
    ) -> list[RowStep]:
        start = (self._ids[kind] == row_id).arg_true().to_numpy().astype(np.int32) + self._first[kind]
        reached, via, relations, depths = links.walk(start, depth)
        return [
            RowStep(found_kind, found_id, steps, _RELATIONS[relation][side], origin_id)
            for (found_kind, found_id), (_, origin_id), relation, steps in zip(
                self._named(reached), self._named(via), relations.tolist(), depths.tolist(), strict=True
            )
        ]

    def _named(self, numbers: Numbers) -> list[tuple[RowKind, str]]:
        """Kind and id of each numbered row."""
        kinds = np.searchsorted(list(self._first.values()), numbers, side="right") - 1
        return [
            (_KINDS[kind], self._ids[_KINDS[kind]][number - self._first[_KINDS[kind]]])
            for kind, number in zip(kinds.tolist(), numbers.tolist(), strict=True)
        ]


class _Adjacency:
    """Links by the row that they start from (compressed sparse rows)."""

    def __init__(
        self, starts: Numbers, ends: Numbers, relations: npt.NDArray[np.generic], count: int
    ) -> None:
        order = np.argsort(starts, kind="stable")
        self._ends, self._relations = ends[order], relations[order]
        self._offsets = np.concatenate(([0], np.cumsum(np.bincount(starts, minlength=count))))
        self._count = count

    def walk(
        self, start: Numbers, depth: int | None
    ) -> tuple[Numbers, Numbers, npt.NDArray[np.generic], Numbers]:
        """Breadth first: the rows reached, and for each the row before it, the relation and the steps."""
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
            steps = np.full(len(kept), distance, dtype=np.int32)
            found.append((level, via[kept], self._relations[places[kept]], steps))
        if not found:
            nothing = np.empty(0, dtype=np.int32)
            return nothing, nothing, nothing, nothing
        reached, via, relations, depths = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return reached, via, relations, depths


def _each_once(ids: pl.Series) -> pl.Series:
    """The ids in the order of the rows, each once: a row may lie in several artifacts.

    If there are as many different hashes as rows, no id is repeated; that is much faster than comparing ids.
    """
    return ids if ids.hash().n_unique() == len(ids) else ids.unique(maintain_order=True)


def _links(
    tables: Mapping[RowKind, pl.DataFrame], numbers: Mapping[RowKind, pl.DataFrame]
) -> list[pl.DataFrame]:
    """(origin, derived, relation) of every link in the columns; rows are given by their numbers.

    `tables` hold the `number` of each row, `numbers` the `number` of each `id`.
    """
    told: Mapping[RowKind, list[pl.LazyFrame]] = {
        "trajectory": [
            _named_by(tables["trajectory"], "parent_trajectory_id", _PARENT),
            _named_by(tables["memory_entry"], "source_trajectory_id", _SOURCE),
            _named_by(tables["sft_row"], "trajectory_id", _DISTILLED),
        ],
        "memory_entry": [
            _named_by(tables["trajectory"], "memory_entry_ids", _SAW),
            _named_by(tables["memory_entry"], "parent_entry_ids", _PARENT_ENTRY),
        ],
    }
    return [
        pl.concat(links)
        .join(numbers[origin].lazy(), on="id", maintain_order="left")
        .select(pl.col("number").alias("origin"), "derived", "relation")
        .collect()
        for origin, links in told.items()
    ]


def _named_by(table: pl.DataFrame, column: str, relation: int) -> pl.LazyFrame:
    """For what one column names: `id` of the origin, number of the row `derived` from it, and `relation`."""
    named = table.lazy().select(
        id=pl.col(column),
        derived=pl.col("number"),
        relation=pl.lit(relation, pl.Int8),
    )
    if isinstance(table.schema[column], pl.List):
        named = named.filter(pl.col("id").list.len() > 0).explode("id")
    return named.drop_nulls("id")


Hashes = npt.NDArray[np.uint64]
_READ_AT_ONCE = 200
"""Most artifacts whose rows are in memory at the same time."""
_NONE = np.empty(0, np.uint64)


@dataclass(frozen=True)
class _Part:
    """The rows of one artifact: their ids, and (row, origin) for all that their columns name."""

    manifest: Manifest
    ids: Hashes
    derived: Hashes
    origins: Hashes


class RowPlaces:
    """Which artifacts hold the rows of a store; takes about 60 bytes of memory for each row.

    An artifact never changes, so what was read of it is kept as long as callers give the same manifest object
    for it. A `WatchedStore` returns the same object until the manifest's file changes. Whoever reads the rows
    verifies the files.
    """

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._parts: dict[str, _Part] = {}
        self._sorted = _Sorted(())

    def look(self, manifests: Iterable[Manifest]) -> None:
        """Read those of these artifacts that are new, and forget all others.

        Raises DamagedArtifact if a file of a new one is not what its manifest says.
        """
        parts: dict[str, _Part] = {}
        new: list[Manifest] = []
        for manifest in manifests:
            if not holds_rows(manifest):
                continue
            kept = self._parts.get(manifest.artifact_id)
            if kept is None or kept.manifest is not manifest:
                new.append(manifest)
            else:
                parts[manifest.artifact_id] = kept
        if new or len(parts) < len(self._parts):
            for start in range(0, len(new), _READ_AT_ONCE):
                parts |= self._read(new[start : start + _READ_AT_ONCE])
            self._parts, self._sorted = parts, _Sorted(list(parts.values()))

    def around(
        self, row_id: str, direction: Literal["upstream", "downstream"], depth: int | None
    ) -> Sequence[str]:
        """Artifacts that may hold the row, or rows that it came from (upstream) or that came from it
        (downstream), at most `depth` steps away. Only artifacts of the last call of `look` are known."""
        known = self._sorted  # stays consistent if another thread calls `look` meanwhile
        links = known.by_derived if direction == "upstream" else known.by_origin
        level = _hashes(pl.Series([row_id]))
        found, steps = level, 0
        while len(level) and (depth is None or steps < depth):
            level = np.setdiff1d(links.of(level), found)
            found, steps = np.union1d(found, level), steps + 1
        return [known.artifacts[number] for number in np.unique(known.by_id.of(found)).tolist()]

    def _read(self, manifests: Sequence[Manifest]) -> dict[str, _Part]:
        rows = LineageRows(self._store, manifests)
        ids: dict[str, list[Hashes]] = {}
        pairs: dict[str, list[tuple[Hashes, Hashes]]] = {}
        for kind, (id_column, *named) in LINK_COLUMNS.items():
            for (holder,), table in rows.read(kind, LINK_COLUMNS[kind]).group_by(
                "artifact_id", maintain_order=True
            ):
                ids.setdefault(str(holder), []).append(_hashes(table[id_column]))
                for column in named:
                    pairs.setdefault(str(holder), []).append(_named(table, id_column, column))
        parts = {}
        for manifest in manifests:
            own = pairs.get(manifest.artifact_id, [])
            parts[manifest.artifact_id] = _Part(
                manifest,
                np.concatenate([_NONE, *ids.get(manifest.artifact_id, [])]),
                np.concatenate([_NONE, *(derived for derived, _ in own)]),
                np.concatenate([_NONE, *(origins for _, origins in own)]),
            )
        return parts


class _Sorted:
    """The rows of all artifacts, sorted for look-up."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.artifacts = [part.manifest.artifact_id for part in parts]
        sizes = np.array([len(part.ids) for part in parts], np.int64)
        numbers = np.repeat(np.arange(len(parts), dtype=np.uint64), sizes)
        self.by_id = _Pairs(np.concatenate([_NONE, *(part.ids for part in parts)]), numbers)
        derived = np.concatenate([_NONE, *(part.derived for part in parts)])
        origins = np.concatenate([_NONE, *(part.origins for part in parts)])
        self.by_origin, self.by_derived = _Pairs(origins, derived), _Pairs(derived, origins)


class _Pairs:
    """Values by keys; several may have one key."""

    def __init__(self, keys: Hashes, values: npt.NDArray[np.uint64]) -> None:
        order = np.argsort(keys)
        self._keys, self._values = keys[order], values[order]

    def of(self, keys: Hashes) -> npt.NDArray[np.uint64]:
        """The values of all these keys."""
        starts, ends = np.searchsorted(self._keys, keys), np.searchsorted(self._keys, keys, side="right")
        return np.concatenate(
            [_NONE, *(self._values[start:end] for start, end in zip(starts, ends, strict=True))]
        )


def _hashes(ids: pl.Series) -> Hashes:
    hashes: Hashes = ids.hash().to_numpy()
    return hashes


def _named(table: pl.DataFrame, id_column: str, column: str) -> tuple[Hashes, Hashes]:
    """(row, origin) for what one column names."""
    named = table.select(derived=pl.col(id_column), origin=pl.col(column))
    if isinstance(table.schema[column], pl.List):
        named = named.filter(pl.col("origin").list.len() > 0).explode("origin")
    named = named.drop_nulls("origin")
    return _hashes(named["derived"]), _hashes(named["origin"])
