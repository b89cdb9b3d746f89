"""Which artifacts hold the rows around a row, by hashes of ids; kept between questions.

Reading every row of a long history takes seconds, but the rows around one row lie in a few artifacts. Hashes
may be equal by chance: then one artifact too many is named, never one too few. The caller reads the rows of
the named artifacts and compares whole ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.lineage.graph import holds_rows
from storage.lineage.links import LINK_COLUMNS
from storage.lineage.rows import LineageRows

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
