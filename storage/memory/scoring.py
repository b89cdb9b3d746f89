"""Retrieval by more than similarity: also by an entry's credit, and how often it was written and shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from storage.memory.search import SCORE_DECIMALS, Found, Ranked, nearest_entries, rank

if TYPE_CHECKING:
    from lancedb.table import Table

_FACTS = ("credit", "support", "retrievals")


@dataclass(frozen=True)
class Scoring:
    """How entries are ranked for a query.

    score = cosine similarity + credit_weight * credit + support_weight * ln(support)
            - retrieval_penalty * ln(1 + retrievals)

    Only the `candidates` most similar entries are scored. With all weights 0 this is the vector search. The
    penalty, which gives rarely retrieved entries a chance, is that of Complementary RL (arXiv 2603.17621).
    """

    credit_weight: float = 0.0
    support_weight: float = 0.0
    retrieval_penalty: float = 0.0
    candidates: int = 256
    min_similarity: float | None = None
    """Entries that are less similar to the query are not retrieved; None takes all."""
    fallback: Literal["none", "recent"] = "none"
    """What is retrieved if nothing is similar enough: nothing, or the entries that were written last."""

    @property
    def by_similarity(self) -> bool:
        """Whether the ranking is that of the vector search."""
        return not (self.credit_weight or self.support_weight or self.retrieval_penalty)

    def score(self, similarity: float, credit: float, support: int, retrievals: int) -> float:
        """The score that entries are ranked by, rounded as similarities are."""
        bonus = self.credit_weight * credit + self.support_weight * math.log(support)
        return round(similarity + bonus - self.retrieval_penalty * math.log1p(retrievals), SCORE_DECIMALS)


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
    scored = (
        [
            hit._replace(score=scoring.score(hit.score, *facts))
            for hit, facts in candidates
            if hit.score >= least
        ]
        for candidates in nearest_entries(table, queries, wanted, condition, _FACTS)
    )
    return [sorted(ranked, key=rank)[:top_k] for ranked in scored]


def most_recent(table: Table, count: int, condition: str) -> Ranked:
    """The `count` entries that were written last, the newest first; ties are ordered by text, then by entry
    id. Their score is 0."""
    search = table.search().select(["entry_id", "text", "last_iteration"])
    if condition:
        search = search.where(condition)
    rows = search.limit(max(1, table.count_rows())).to_arrow()
    newest = rows.sort_by(
        [("last_iteration", "descending"), ("text", "ascending"), ("entry_id", "ascending")]
    )
    return [Found(row["entry_id"], 0.0, row["text"]) for row in newest.slice(0, count).to_pylist()]
