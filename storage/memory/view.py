"""One version of a memory, for searching and reading, and the object that opens a memory's versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, StoreError
from storage.memory import search as searching
from storage.memory.entries import MEMORY_SCHEMA, Embedder, MemoryEntry, entries_digest
from storage.memory.index import CACHE_BYTES, MemoryIndex, index_folder
from storage.memory.search_indexes import ENTRY, TEXT_KEY, read_entry, some_at_a_time, vector_index
from storage.texts import storable

if TYPE_CHECKING:
    from lancedb.table import Table


_FACTS = {"entry_id": pl.String, "text_key": pl.String, "last_iteration": pl.Int32, "credit": pl.Float64}


@dataclass(frozen=True)
class MemoryHit:
    """An entry that was found.

    `score` is the cosine similarity of its key to the query, in [-1, 1]. In a search by words it is the BM25
    score, in a hybrid search the sum of the reciprocal ranks; for `MemoryView.retrieve` see `Scoring`.
    """

    entry: MemoryEntry
    score: float


class ReflectionMemory:
    """The versions of one memory, opened in a LanceDB table of its own.

    The table lies in `STORE/memory/<name>`, or on this machine if the store is an object store. It is built
    from the committed artifacts of the memory versions, so any version can be opened under any name and after
    any kill.
    """

    def __init__(
        self,
        store_uri: str,
        name: str,
        artifacts: ArtifactStore,
        embedder: Embedder,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.embedder = embedder
        self._index = MemoryIndex(index_folder(store_uri, name), artifacts, cache_bytes)

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
        chosen: searching.MemoryFilter = searching.MemoryFilter(),  # noqa: B008 (it is frozen)
        *,
        mode: searching.SearchMode = "vector",
        exact: bool = True,
    ) -> list[list[MemoryHit]]:
        """For each text the `top_k` best entries, the best first; ties are ordered by text, then by entry id.

        Args:
            mode: by similarity of meaning, by words, or both fused by rank.
            exact: compare every vector. If False, a memory that has a vector index is searched by it: in
                milliseconds, but an entry may be missed. A search that must be reproducible has to be exact,
                with mode `vector`.

        Raises:
            ValueError: `top_k` is less than 1.
            StoreError: the entries were embedded by another model than the queries (not in mode `text`).
            InputError: the model gives a query no direction, so that nothing can be compared with it (not in
                mode `text`).
        """
        if top_k < 1:
            raise ValueError(f"top_k is {top_k}; it must be at least 1")
        if self._table is None or not texts:
            return [[] for _ in texts]
        texts = list(map(storable, texts))
        distinct = list(dict.fromkeys(texts))
        by_index = not exact and self.vector_index is not None
        if mode != "text":
            self._require_same_model()
        if mode == "vector" and by_index:
            return [
                [MemoryHit(*found) for found in searching.indexed_entries(self._table, query, top_k, chosen)]
                for query in self._embedded(texts)
            ]
        if mode == "text":
            found = searching.text_search(self._table, distinct, top_k, chosen.condition())
        elif mode == "hybrid":
            queries = self._embedded(distinct)
            found = searching.hybrid_search(self._table, distinct, queries, top_k, chosen, by_index)
        else:
            found = searching.exact_search(self._table, self._embedded(distinct), top_k, chosen.condition())
        return _hits(self._table, texts, distinct, found)

    def retrieve(
        self, texts: Sequence[str], top_k: int, scoring: searching.Scoring, task_type: str | None = None
    ) -> list[list[MemoryHit]]:
        """For each text the `top_k` entries of the highest score, the best first; ties are ordered by text,
        then by entry id.

        The search is exact, since a run's data depend on it. Raises StoreError and InputError as `search`
        does.
        """
        if self._table is None or not texts:
            return [[] for _ in texts]
        self._require_same_model()
        condition = searching.MemoryFilter(task_type).condition()
        distinct = list(dict.fromkeys(texts))
        found = searching.scored_search(self._table, self._embedded(distinct), top_k, condition, scoring)
        if scoring.fallback == "recent" and not all(found):
            recent = searching.most_recent(self._table, top_k, condition)
            found = [ranked or recent for ranked in found]
        return _hits(self._table, texts, distinct, found)

    @cached_property
    def vector_index(self) -> str | None:
        """Type of the index that searches use which need not be exact; None if all searches are exact."""
        return None if self._table is None else vector_index(self._table)

    def count(self) -> int:
        """Number of entries."""
        return 0 if self._table is None else int(self._table.count_rows())

    def facts(self) -> pl.DataFrame:
        """What eviction depends on (`storage.memory.changes.Held`), for all entries, by id."""
        if self._table is None:
            return pl.DataFrame(schema=_FACTS)
        return _frame(self._table.search().select(list(_FACTS)).to_arrow())

    def get(self, entry_ids: Sequence[str]) -> dict[str, MemoryEntry]:
        """Those entries that this version holds, by id."""
        return {} if self._table is None else _fetch(self._table, set(entry_ids))

    def with_texts(self, text_keys: Sequence[str]) -> dict[str, MemoryEntry]:
        """The entries with one of these `MemoryEntry.text_key`s, by that key."""
        found = {} if self._table is None else _fetch(self._table, set(text_keys), TEXT_KEY)
        return {entry.text_key: entry for entry in found.values()}

    def entries(self) -> pl.DataFrame:
        """All entries with their vectors, by entry id."""
        return _frame(self._rows)

    def digest(self) -> str:
        """64 hex digits over the entries; equal for equal memories, however their files are laid out."""
        return entries_digest(self._rows)

    @property
    def _rows(self) -> pa.Table:
        if self._table is None:
            return MEMORY_SCHEMA.empty_table()
        return self._table.search().select(MEMORY_SCHEMA.names).to_arrow()

    @cached_property
    def _models(self) -> set[str]:
        assert self._table is not None
        rows = self._table.search().select(["embedding_model"]).to_arrow()
        return set(rows.column("embedding_model").unique().to_pylist())

    def _embedded(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The vectors of queries, [text, dimension]. LanceDB finds nothing for one that points nowhere."""
        vectors = self._embedder.embed(texts)
        lengths = np.linalg.norm(vectors, axis=1)
        for place in np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0))):
            raise InputError(
                f"embedding model {self._embedder.embedding_model} gave a vector of length {lengths[place]} "
                f"for the query {texts[place][:60]!r}: no entry can be compared with it. Search by words "
                "(mode `text`), say it in other words, or make the memory with another model."
            )
        return vectors

    def _require_same_model(self) -> None:
        other = self._models - {self._embedder.embedding_model}
        if other:
            raise StoreError(
                f"the memory was embedded by {', '.join(sorted(other))} and the query by "
                f"{self._embedder.embedding_model}; search with the model that the memory was made with."
            )


def _frame(rows: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.sort("entry_id")


def _hits(
    table: Table, texts: Sequence[str], distinct: Sequence[str], found: Sequence[searching.Ranked]
) -> list[list[MemoryHit]]:
    """For each text what was found for it; `found` has what was found for each of the `distinct` texts."""
    entries = _fetch(table, {hit.entry_id for ranked in found for hit in ranked})
    ranked_of = dict(zip(distinct, found, strict=True))
    return [[MemoryHit(entries[hit.entry_id], hit.score) for hit in ranked_of[text]] for text in texts]


def _fetch(table: Table, values: set[str], column: str = "entry_id") -> dict[str, MemoryEntry]:
    """The entries with one of these values in a column, by id."""
    entries: list[MemoryEntry] = []
    for some in some_at_a_time(sorted(values)):
        # The one column that holds all others as JSON: LanceDB reads each column separately.
        rows = table.search().where(f"{column} IN ({some})").select([ENTRY]).to_arrow()
        entries += map(read_entry, rows.column(ENTRY).to_pylist())
    return {entry.entry_id: entry for entry in entries}


LEAST_ALIKE = 0.85
"""Least share of words, in order, that two near-duplicates have in common (`SequenceMatcher.ratio`)."""


@dataclass(frozen=True)
class FoldedHit:
    """A hit, and those with a lower score that say almost the same."""

    hit: MemoryHit
    alike: tuple[MemoryHit, ...] = ()


def fold(hits: Sequence[MemoryHit]) -> list[FoldedHit]:
    """Hits, the best first, each with its near-duplicates."""
    best: list[tuple[MemoryHit, list[str], list[MemoryHit]]] = []
    for hit in hits:
        words = hit.entry.text.lower().split()
        for _, others, alike in best:
            if _are_alike(words, others):
                alike.append(hit)
                break
        else:
            best.append((hit, words, []))
    return [FoldedHit(hit, tuple(alike)) for hit, _, alike in best]


def folded_search(search: Callable[[int], Sequence[MemoryHit]], top_k: int) -> list[FoldedHit]:
    """The best `top_k` hits that say different things.

    Args:
        search: gives the best hits, as many as its argument says, or fewer if there are no more.
    """
    asked = 4 * top_k
    while True:
        hits = search(asked)
        folded = fold(hits)
        if len(folded) >= top_k or len(hits) < asked:
            return folded[:top_k]
        asked *= 4


def _are_alike(words: Sequence[str], others: Sequence[str]) -> bool:
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    return matcher.quick_ratio() >= LEAST_ALIKE and matcher.ratio() >= LEAST_ALIKE
