"""Ways to search one version of a memory's table: exactly, by the vector index, by words, and by both; and
retrieval by more than similarity: also by an entry's credit, and how often it was written and shown."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.memory.search_indexes import (
    ENTRY,
    PROBES,
    REFINED,
    TEXT_COLUMNS,
    has_text_index,
    index_texts,
    quote,
    read_entry,
)

if TYPE_CHECKING:
    from lancedb.table import Table

    from storage.memory.entries import MemoryEntry


SearchMode = Literal["vector", "text", "hybrid"]


class Found(NamedTuple):
    """An entry that a search found, with its score; `text` orders entries of equal score."""

    entry_id: str
    score: float
    text: str = ""


Ranked = list[Found]
"""Hits, the best first. Ties are ordered by text, and only those with the same text by id: ids depend on the
ids of artifacts, which change with every edit of the code that made them."""
Candidate = tuple[Found, tuple[Any, ...]]
"""An entry with its cosine similarity, and values of further columns."""

SCORE_DECIMALS = 6
_FIRST_CANDIDATES = 32
_FUSED_CANDIDATES = 100
_RANK_OFFSET = 60


@dataclass(frozen=True)
class MemoryFilter:
    """Which entries are searched; None does not restrict."""

    task_type: str | None = None
    environment: str | None = None
    minimum_credit: float | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None

    def condition(self) -> str:
        """The filter in SQL, as LanceDB and polars read it; empty if nothing restricts."""
        parts = (
            ("task_type =", self.task_type),
            ("environment =", self.environment),
            ("credit >=", self.minimum_credit),
            ("iteration >=", self.first_iteration),
            ("iteration <=", self.last_iteration),
        )
        given = [(what, value) for what, value in parts if value is not None]
        return " AND ".join(f"{what} {quote(v) if isinstance(v, str) else repr(v)}" for what, v in given)


def rank(hit: Found) -> tuple[float, str, str]:
    """The key by which hits are sorted."""
    return -hit.score, hit.text, hit.entry_id


def exact_search(table: Table, queries: npt.NDArray[np.float32], top_k: int, condition: str) -> list[Ranked]:
    """The nearest entries of each query by cosine similarity, among all that meet the condition."""
    found = nearest_entries(table, queries, top_k, condition, [])
    return [[hit for hit, _ in ranked] for ranked in found]


def nearest_entries(
    table: Table, queries: npt.NDArray[np.float32], top_k: int, condition: str, columns: Sequence[str]
) -> list[list[Candidate]]:
    """Like `exact_search`, with further columns of each entry."""
    nearest: dict[int, list[Candidate]] = {}
    open_queries, limit = list(range(len(queries))), max(_FIRST_CANDIDATES, 2 * top_k)
    while open_queries:
        found = _candidates(table, queries[open_queries], limit, condition, columns)
        for query, candidates in zip(open_queries, found, strict=True):
            ranked = sorted(candidates, key=lambda candidate: rank(candidate[0]))
            # A tie that reaches the last candidate may continue beyond it. Then search further, since which
            # of several tied entries LanceDB returns depends on the layout of its files.
            if len(ranked) < limit or ranked[-1][0].score < ranked[top_k - 1][0].score:
                nearest[query] = ranked[:top_k]
        open_queries = [query for query in open_queries if query not in nearest]
        limit *= 4
    return [nearest[query] for query in range(len(queries))]


def indexed_entries(
    table: Table, query: npt.NDArray[np.float32], top_k: int, chosen: MemoryFilter
) -> list[tuple[MemoryEntry, float]]:
    """Like `exact_search` for one query, by the vector index: much faster, but an entry may be missed.
    Scores are exact.

    One call returns whole entries; fetching them by a second call would take twice the time.
    """
    search = table.search(query, vector_column_name="vector").distance_type("cosine")
    # With a maximum of 0, partitions are visited until there are as many candidates as the limit says.
    search = search.minimum_nprobes(PROBES).maximum_nprobes(0)
    condition = chosen.condition()
    if condition:
        search = search.where(condition, prefilter=True)
    found = search.select([ENTRY, "vector", "_distance"]).limit(max(REFINED, 5 * top_k)).to_arrow()
    vectors = found.column("vector").combine_chunks().flatten().to_numpy().reshape(-1, len(query))
    scores = vectors @ query / (np.linalg.norm(vectors, axis=1) * np.linalg.norm(query))
    rounded = [round(float(score), SCORE_DECIMALS) for score in scores]
    least = sorted(rounded, reverse=True)[:top_k][-1] if rounded else 0.0
    texts = found.column(ENTRY)
    hits = [
        (read_entry(texts[place].as_py()), score) for place, score in enumerate(rounded) if score >= least
    ]
    return sorted(hits, key=lambda hit: (-hit[1], hit[0].text, hit[0].entry_id))[:top_k]


def text_search(table: Table, texts: Sequence[str], top_k: int, condition: str) -> list[Ranked]:
    """The entries whose text or situation best matches the words of each query text, by BM25."""
    from lancedb.query import MultiMatchQuery

    searched = table if has_text_index(table) else _with_text_index(table)
    found = []
    for text in texts:
        search = searched.search(MultiMatchQuery(text, list(TEXT_COLUMNS)), query_type="fts")
        if condition:
            search = search.where(condition, prefilter=True)
        rows = search.select(["entry_id", "text", "_score"]).limit(max(_FIRST_CANDIDATES, 2 * top_k))
        hits = [
            Found(row["entry_id"], round(row["_score"], SCORE_DECIMALS), row["text"])
            for row in rows.to_list()
        ]
        found.append(sorted(hits, key=rank)[:top_k])
    return found


def fuse(rankings: Sequence[Ranked], top_k: int) -> Ranked:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009): score = sum of 1 / (60 + rank)."""
    scores: dict[str, float] = defaultdict(float)
    texts: dict[str, str] = {}
    for ranking in rankings:
        for place, hit in enumerate(ranking, start=1):
            scores[hit.entry_id] += 1.0 / (_RANK_OFFSET + place)
            texts[hit.entry_id] = hit.text
    hits = [
        Found(entry_id, round(score, SCORE_DECIMALS), texts[entry_id]) for entry_id, score in scores.items()
    ]
    return sorted(hits, key=rank)[:top_k]


def hybrid_search(
    table: Table,
    texts: Sequence[str],
    queries: npt.NDArray[np.float32],
    top_k: int,
    chosen: MemoryFilter,
    by_index: bool,
) -> list[Ranked]:
    """Search by vector and by words, fused by rank."""
    depth = max(_FUSED_CANDIDATES, top_k)
    if by_index:
        found = [indexed_entries(table, query, depth, chosen) for query in queries]
        by_vector = [[Found(entry.entry_id, score, entry.text) for entry, score in some] for some in found]
    else:
        by_vector = exact_search(table, queries, depth, chosen.condition())
    by_text = text_search(table, texts, depth, chosen.condition())
    return [fuse(rankings, top_k) for rankings in zip(by_vector, by_text, strict=True)]


def _candidates(
    table: Table, queries: npt.NDArray[np.float32], limit: int, condition: str, columns: Sequence[str]
) -> list[list[Candidate]]:
    search = table.search(list(queries), vector_column_name="vector").distance_type("cosine")
    search = search.bypass_vector_index()
    if condition:
        search = search.where(condition, prefilter=True)
    rows = search.select(["entry_id", "text", *columns, "_distance"]).limit(limit).to_arrow()
    # LanceDB numbers the queries only if there are several.
    numbers = rows.column("query_index").to_pylist() if len(queries) > 1 else [0] * rows.num_rows
    values = zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
    found: list[list[Candidate]] = [[] for _ in queries]
    for number, entry_id, text, distance, further in zip(
        numbers,
        rows.column("entry_id").to_pylist(),
        rows.column("text").to_pylist(),
        rows.column("_distance").to_pylist(),
        values if columns else repeat(()),
        strict=False,
    ):
        found[number].append((Found(entry_id, round(1.0 - distance, SCORE_DECIMALS), text), further))
    return found


def _with_text_index(table: Table) -> Table:
    """A copy in memory with a full-text index; for tables of fewer than `INDEXED_ROWS` entries."""
    import lancedb

    columns = [name for name in table.schema.names if name not in ("vector", ENTRY)]
    copy = lancedb.connect("memory://").create_table("reflections", table.search().select(columns).to_arrow())
    index_texts(copy)
    return copy


_FACTS = ("credit", "support", "retrievals")


@dataclass(frozen=True)
class Scoring:
    """How entries are ranked for a query.

    score = cosine similarity + credit_weight * credit + support_weight * ln(support)
            - retrieval_penalty * ln(1 + retrievals)
            + exploration * sqrt(ln(1 + all retrievals) / (1 + retrievals))

    Only the `candidates` most similar entries are scored. With all weights 0 this is the vector search. The
    penalty, which gives rarely retrieved entries a chance, is that of Complementary RL (arXiv 2603.17621);
    the exploration is UCB1's (Auer et al. 2002), where all retrievals are those of the scored entries.
    """

    credit_weight: float = 0.0
    support_weight: float = 0.0
    retrieval_penalty: float = 0.0
    exploration: float = 0.0
    candidates: int = 256
    min_similarity: float | None = None
    """Entries that are less similar to the query are not retrieved; None takes all."""
    fallback: Literal["none", "recent"] = "none"
    """What is retrieved if nothing is similar enough: nothing, or the entries that were written last."""

    @property
    def by_similarity(self) -> bool:
        """Whether the ranking is that of the vector search."""
        return not (self.credit_weight or self.support_weight or self.retrieval_penalty or self.exploration)

    def score(
        self, similarity: float, credit: float, support: int, retrievals: int, all_retrievals: int = 0
    ) -> float:
        """The score that entries are ranked by, rounded as similarities are."""
        bonus = self.credit_weight * credit + self.support_weight * math.log(support)
        untried = math.sqrt(math.log1p(all_retrievals) / (1 + retrievals))
        penalty = self.retrieval_penalty * math.log1p(retrievals)
        return round(similarity + bonus - penalty + self.exploration * untried, SCORE_DECIMALS)


def scored_search(
    table: Table,
    queries: npt.NDArray[np.float32],
    top_k: int,
    condition: str,
    scoring: Scoring,
) -> list[Ranked]:
    """The entries of the highest score for each query, among all that meet the condition."""
    wanted = top_k if scoring.by_similarity else max(top_k, scoring.candidates)
    least = -math.inf if scoring.min_similarity is None else scoring.min_similarity
    found = []
    for candidates in nearest_entries(table, queries, wanted, condition, _FACTS):
        near = [(hit, facts) for hit, facts in candidates if hit.score >= least]
        shown = sum(retrievals for _, (_, _, retrievals) in near)
        scored = [
            hit._replace(score=scoring.score(hit.score, credit, support, retrievals, shown))
            for hit, (credit, support, retrievals) in near
        ]
        found.append(sorted(scored, key=rank)[:top_k])
    return found


def most_recent(table: Table, count: int, condition: str) -> Ranked:
    """The `count` entries that were written last, the newest first; ties are ordered by text, then by entry
    id. Their score is 0."""
    search = table.search().select(["entry_id", "text", "last_iteration"])
    rows = (search.where(condition) if condition else search).to_arrow()
    newest = rows.sort_by(
        [("last_iteration", "descending"), ("text", "ascending"), ("entry_id", "ascending")]
    )
    return [Found(row["entry_id"], 0.0, row["text"]) for row in newest.slice(0, count).to_pylist()]
