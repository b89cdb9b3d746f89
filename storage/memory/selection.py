"""Which entries a memory keeps: near-duplicates are merged, and a full memory evicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from storage.memory.embedder import Embedder
from storage.memory.entries import MemoryEntry
from storage.memory.view import MemoryView

Eviction = Literal["oldest", "lowest_credit"]

_CANDIDATES = 32
_DECIMALS = 6


@dataclass(frozen=True)
class MemoryLimits:
    """Limits that keep a memory compact; None does not limit."""

    merge_similarity: float | None = None
    """Least cosine similarity of near-duplicates."""
    max_entries: int | None = None
    evict: Eviction = "oldest"


class Held(NamedTuple):
    """What eviction depends on, for one entry; the columns of `MemoryView.facts`."""

    entry_id: str
    text_key: str
    last_iteration: int
    credit: float


def near_duplicates(
    view: MemoryView, entries: Sequence[MemoryEntry], least: float, embedder: Embedder
) -> dict[str, tuple[str, float]]:
    """New entries that are near-duplicates, by id, with the id of the entry that replaces each and the
    similarity. Entries are compared within a task type.

    A text is compared with those of the 32 earlier entries with the most similar situations, and with the new
    texts before it. The most similar text replaces it; ties are ordered by text, then by id.
    """
    earlier: list[list[MemoryEntry]] = [[] for _ in entries]
    for task_type in sorted({entry.task_type for entry in entries}):
        places = [place for place, entry in enumerate(entries) if entry.task_type == task_type]
        found = view.search([entries[place].key_text for place in places], _CANDIDATES, task_type=task_type)
        for place, hits in zip(places, found, strict=True):
            earlier[place] = [hit.entry for hit in hits]
    texts = list(dict.fromkeys(each.text for each in [*entries, *(one for some in earlier for one in some)]))
    vectors = dict(zip(texts, embedder.embed(texts), strict=True)) if texts else {}
    merged: dict[str, tuple[str, float]] = {}
    kept: list[MemoryEntry] = []
    for entry, candidates in zip(entries, earlier, strict=True):
        others = [*candidates, *(each for each in kept if each.task_type == entry.task_type)]
        alike = [(_similarity(vectors[entry.text], vectors[other.text]), other) for other in others]
        similarity, best = min(
            alike, key=lambda pair: (-pair[0], pair[1].text, pair[1].entry_id), default=(-1.0, entry)
        )
        if similarity >= least:
            merged[entry.entry_id] = (best.entry_id, similarity)
        else:
            kept.append(entry)
    return merged


def evicted(held: pl.DataFrame, changed: Sequence[Held], policy: Eviction, excess: int) -> list[str]:
    """Which `excess` entries leave: those written longest ago, or those of the lowest credit.

    Ties are ordered by the other of the two criteria, then by the digest of the text, then by id.

    Args:
        held: the entries before the change, as `MemoryView.facts` gives them.
        changed: entries that are new or have changed, as they are now.
    """
    now = pl.DataFrame(changed, schema=held.schema, orient="row")
    order = ["last_iteration", "credit"] if policy == "oldest" else ["credit", "last_iteration"]
    entries = pl.concat([held.join(now, on="entry_id", how="anti"), now])
    return entries.sort([*order, "text_key", "entry_id"]).head(excess)["entry_id"].to_list()


def _similarity(left: np.ndarray, right: np.ndarray) -> float:
    """Cosine similarity of two unit vectors, rounded as scores of a search are."""
    return round(float(np.dot(left.astype(np.float64), right.astype(np.float64))), _DECIMALS)
