"""The reflection memory of a run: entries of committed memory versions, searched by similarity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from storage.artifacts import ArtifactStore
from storage.embedding import Embedder
from storage.errors import StoreError
from storage.memory_entries import MEMORY_SCHEMA, MemoryEntry, entries_digest, write_delta
from storage.memory_index import EMPTY_MEMORY, MemoryIndex, index_folder

if TYPE_CHECKING:
    from lancedb.table import Table

__all__ = ["EMPTY_MEMORY", "MemoryEntry", "MemoryHit", "MemoryView", "ReflectionMemory", "write_delta"]

_SCORE_DECIMALS = 6
_FIRST_CANDIDATES = 32
_ENTRY_COLUMNS = [field.name for field in fields(MemoryEntry)]


@dataclass(frozen=True)
class MemoryHit:
    """An entry that was found, and the cosine similarity of its key to the query, in [-1, 1]."""

    entry: MemoryEntry
    score: float


class ReflectionMemory:
    """A run's memory. Its LanceDB table lies in `STORE/memory/<run>`; of an object store, on this machine.

    What it holds is what the committed artifacts of the memory versions hold, so any version can be
    opened from any run and after any kill.
    """

    def __init__(self, store_uri: str, run_name: str, artifacts: ArtifactStore, embedder: Embedder) -> None:
        self.embedder = embedder
        self._index = MemoryIndex(index_folder(store_uri, run_name), artifacts)

    def at(self, version: str) -> MemoryView:
        """The memory as it is at a version: an artifact id, or `empty`.

        Raises InputError for an unknown version, DamagedArtifact when an artifact of it is damaged.
        """
        return MemoryView(self._index.open(version), self.embedder)


class MemoryView:
    """One memory version; it never changes."""

    def __init__(self, table: Table | None, embedder: Embedder) -> None:
        self._table = table
        self._embedder = embedder

    def search(
        self,
        texts: Sequence[str],
        top_k: int,
        task_type: str | None = None,
        minimum_gain: float | None = None,
    ) -> list[list[MemoryHit]]:
        """For each text the `top_k` most similar active entries, the best first, equals by entry id.

        The search is exact. `minimum_gain` is the least `reward_after - reward_before`.

        Raises:
            ValueError: `top_k` is less than 1.
            StoreError: the entries were embedded by another model than the one for the queries.
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; it must be at least 1")
        if self._table is None or not texts:
            return [[] for _ in texts]
        self._require_same_model(self._table)
        distinct = list(dict.fromkeys(texts))
        condition = _condition(task_type, minimum_gain)
        found = _nearest(self._table, self._embedder.embed(distinct), top_k, condition)
        entries = _fetch(self._table, {entry_id for ranked in found for entry_id, _ in ranked})
        hits = {
            text: [MemoryHit(entries[entry_id], score) for entry_id, score in ranked]
            for text, ranked in zip(distinct, found, strict=True)
        }
        return [list(hits[text]) for text in texts]

    def count(self) -> int:
        """Number of entries."""
        return 0 if self._table is None else int(self._table.count_rows())

    def entries(self) -> pl.DataFrame:
        """All entries with their vectors, by entry id."""
        frame = pl.from_arrow(self._rows)
        assert isinstance(frame, pl.DataFrame)
        return frame.sort("entry_id")

    def digest(self) -> str:
        """Hex SHA-256 over the entries in fixed order; equal for equal memories, whatever their files."""
        return entries_digest(self._rows)

    @property
    def _rows(self) -> pa.Table:
        if self._table is None:
            return MEMORY_SCHEMA.empty_table()
        return self._table.to_arrow().select(MEMORY_SCHEMA.names)

    @cached_property
    def _models(self) -> set[str]:
        assert self._table is not None
        rows = self._table.search().select(["embedding_model"]).limit(self.count()).to_arrow()
        return set(rows.column("embedding_model").to_pylist())

    def _require_same_model(self, table: Table) -> None:
        other = self._models - {self._embedder.embedding_model}
        if other:
            raise StoreError(
                f"the memory was embedded by {', '.join(sorted(other))} and the query by "
                f"{self._embedder.embedding_model}; search with the model that the memory was made with."
            )


def _condition(task_type: str | None, minimum_gain: float | None) -> str:
    parts = ["status = 'active'"]
    if task_type is not None:
        parts.append(f"task_type = {_quoted(task_type)}")
    if minimum_gain is not None:
        parts.append(f"reward_after - reward_before >= {minimum_gain!r}")
    return " AND ".join(parts)


def _nearest(
    table: Table, queries: npt.NDArray[np.float32], top_k: int, condition: str
) -> list[list[tuple[str, float]]]:
    """(entry id, similarity) of the nearest entries of each query, [query, <= top_k]."""
    nearest: dict[int, list[tuple[str, float]]] = {}
    open_queries, limit = list(range(len(queries))), max(_FIRST_CANDIDATES, 2 * top_k)
    while open_queries:
        found = _candidates(table, queries[open_queries], limit, condition)
        for query, candidates in zip(open_queries, found, strict=True):
            ranked = sorted(candidates, key=lambda candidate: (-candidate[1], candidate[0]))
            # A tie that reaches the last candidate may go on beyond it; then look further, since which of
            # equal entries LanceDB returns depends on how its files happen to lie.
            if len(ranked) < limit or ranked[-1][1] < ranked[top_k - 1][1]:
                nearest[query] = ranked[:top_k]
        open_queries = [query for query in open_queries if query not in nearest]
        limit *= 4
    return [nearest[query] for query in range(len(queries))]


def _candidates(
    table: Table, queries: npt.NDArray[np.float32], limit: int, condition: str
) -> list[list[tuple[str, float]]]:
    search = table.search(list(queries)).distance_type("cosine").bypass_vector_index()
    rows = search.where(condition, prefilter=True).select(["entry_id", "_distance"]).limit(limit).to_arrow()
    # LanceDB numbers the queries only where there are several.
    numbers = rows.column("query_index").to_pylist() if len(queries) > 1 else [0] * rows.num_rows
    found: list[list[tuple[str, float]]] = [[] for _ in queries]
    for number, entry_id, distance in zip(
        numbers, rows.column("entry_id").to_pylist(), rows.column("_distance").to_pylist(), strict=True
    ):
        found[number].append((entry_id, round(1.0 - distance, _SCORE_DECIMALS)))
    return found


def _fetch(table: Table, entry_ids: set[str]) -> dict[str, MemoryEntry]:
    if not entry_ids:
        return {}
    condition = f"entry_id IN ({', '.join(_quoted(entry_id) for entry_id in sorted(entry_ids))})"
    rows = table.search().where(condition).select(_ENTRY_COLUMNS).limit(len(entry_ids)).to_arrow()
    entries = [
        MemoryEntry(**{**row, "parent_entry_ids": tuple(row["parent_entry_ids"])}) for row in rows.to_pylist()
    ]
    return {entry.entry_id: entry for entry in entries}


def _quoted(text: str) -> str:
    """A string literal of LanceDB's SQL."""
    return "'" + text.replace("'", "''") + "'"
