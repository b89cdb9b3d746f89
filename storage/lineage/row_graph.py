"""The graph of a store's trajectories, memory entries and SFT rows, built from their columns.

`RowLinks` holds the links of rows that are in memory. Reading every row of a long history takes seconds, but
the rows around one row lie in a few artifacts: `RowPlaces` keeps, between questions, which.
"""

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

LINK_COLUMNS: Mapping[RowKind, tuple[str, ...]] = {
    "trajectory": ("trajectory_id", "parent_trajectory_id", "memory_entry_ids"),
    "memory_entry": ("entry_id", "source_trajectory_id", "parent_entry_ids"),
    "sft_row": ("sft_row_id", "trajectory_id"),
}
"""The columns that links are read from; the first is the row's id."""
_LINKS: tuple[tuple[RowKind, str, RowKind, str, str], ...] = (
    (
        "trajectory",
        "parent_trajectory_id",
        "trajectory",
        "trajectory it followed",
        "trajectory that followed it",
    ),
    (
        "memory_entry",
        "source_trajectory_id",
        "trajectory",
        "trajectory it was taken from",
        "memory entry taken from it",
    ),
    ("sft_row", "trajectory_id", "trajectory", "trajectory that it teaches", "SFT row made of it"),
    ("trajectory", "memory_entry_ids", "memory_entry", "memory entry it saw", "trajectory that saw it"),
    ("memory_entry", "parent_entry_ids", "memory_entry", "parent entry", "entry that names it as parent"),
)
"""For each column that names rows: the kind of row that has it, its name, the kind of row that it names, the
relation of the named row (the origin) to the row that has it, and the other way round."""

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

    Rows are numbered, and the links lie sorted in arrays, so that the cost of a walk grows with what it
    reaches and not with the length of the history.
    """

    def __init__(self, rows: LineageRows) -> None:
        kinds = pl.Enum(list(LINK_COLUMNS))
        ids = [
            rows.read(kind, columns).select(pl.lit(kind, kinds).alias("kind"), pl.col(columns[0]).alias("id"))
            for kind, columns in LINK_COLUMNS.items()
        ]
        table = pl.concat(ids).with_columns(number=pl.int_range(pl.len(), dtype=pl.Int32))
        numbered = table.lazy()
        # A row that lies in several artifacts has the first of its numbers. Different hashes of all rows show
        # that there is none; that is much faster than comparing ids.
        if table.select("kind", "id").hash_rows().n_unique() < len(table):
            table = table.with_columns(pl.col("number").first().over("kind", "id"))
            numbered = table.lazy().unique("number", keep="first", maintain_order=True)
        self._rows = table
        links = []
        for relation, (kind, column, origin_kind, *_) in enumerate(_LINKS):
            own = rows.read(kind, LINK_COLUMNS[kind]).select(origin=column)
            own = own.with_columns(table.filter(kind=kind)["number"].alias("to"))
            origins = numbered.filter(kind=origin_kind).select(origin="id", start="number")
            told = _named(own).lazy().join(origins, on="origin", maintain_order="left")
            links.append(told.select("start", "to", pl.lit(relation, pl.Int8).alias("relation")))
        self._links = pl.concat(links).collect()

    def origins(self, kind: RowKind, row_id: str, depth: int | None = None) -> list[RowStep]:
        """Rows that a row came from, the nearest first, at most `depth` steps away."""
        return self._walk(self._to_origin, kind, row_id, depth, 3)

    def derived(self, kind: RowKind, row_id: str, depth: int | None = None) -> list[RowStep]:
        """Rows that came from a row, the nearest first, at most `depth` steps away."""
        return self._walk(self._from_origin, kind, row_id, depth, 4)

    @cached_property
    def _from_origin(self) -> _Adjacency:
        return self._adjacency("start", "to")

    @cached_property
    def _to_origin(self) -> _Adjacency:
        return self._adjacency("to", "start")

    def _adjacency(self, start: str, end: str) -> _Adjacency:
        starts, ends = self._links[start].to_numpy(), self._links[end].to_numpy()
        return _Adjacency(starts, ends, self._links["relation"].to_numpy(), len(self._rows))

    def _walk(
        self, links: _Adjacency, kind: RowKind, row_id: str, depth: int | None, side: int
    ) -> list[RowStep]:
        wanted = (pl.col("kind") == kind) & (pl.col("id") == row_id)
        start = self._rows.select(wanted.arg_true()).to_series().to_numpy().astype(np.int32)
        reached, via, relations, depths = links.walk(start, depth)
        return [
            RowStep(found_kind, found_id, steps, str(_LINKS[relation][side]), origin_id)
            for (found_kind, found_id), origin_id, relation, steps in zip(
                self._rows[reached].select("kind", "id").rows(),
                self._rows[via]["id"],
                relations.tolist(),
                depths.tolist(),
                strict=True,
            )
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


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows once for each id in their column `origin`, which holds an id, a list of ids, or null."""
    if isinstance(rows.schema["origin"], pl.List):
        rows = rows.filter(pl.col("origin").list.len() > 0).explode("origin")
    return rows.drop_nulls("origin")


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
    """Which artifacts hold the rows of a store, by hashes of ids; takes about 60 bytes of memory a row.

    Hashes may be equal by chance: then one artifact too many is named, never one too few. The caller reads
    the rows of the named artifacts and compares whole ids.

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
        level: Hashes = pl.Series([row_id]).hash().to_numpy()
        found, steps = level, 0
        while len(level) and (depth is None or steps < depth):
            level = np.setdiff1d(links.of(level), found)
            found, steps = np.union1d(found, level), steps + 1
        return [known.artifacts[number] for number in np.unique(known.by_id.of(found)).tolist()]

    def _read(self, manifests: Sequence[Manifest]) -> dict[str, _Part]:
        rows = LineageRows(self._store, manifests)
        ids = [
            rows.read(kind, columns).select("artifact_id", pl.col(columns[0]).hash().alias("id"))
            for kind, columns in LINK_COLUMNS.items()
        ]
        named = [
            _named(
                rows.read(kind, LINK_COLUMNS[kind]).select(
                    "artifact_id", derived=LINK_COLUMNS[kind][0], origin=column
                )
            ).select("artifact_id", pl.col("derived", "origin").hash())
            for kind, column, *_ in _LINKS
        ]
        ids_of = pl.concat(ids).partition_by("artifact_id", as_dict=True)
        named_of = pl.concat(named).partition_by("artifact_id", as_dict=True)
        nothing = pl.DataFrame(schema=dict.fromkeys(("id", "derived", "origin"), pl.UInt64))
        return {
            each.artifact_id: _Part(
                each,
                ids_of.get((each.artifact_id,), nothing)["id"].to_numpy(),
                named_of.get((each.artifact_id,), nothing)["derived"].to_numpy(),
                named_of.get((each.artifact_id,), nothing)["origin"].to_numpy(),
            )
            for each in manifests
        }


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
