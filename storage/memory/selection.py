"""Which entries a memory keeps: near-duplicates are merged, and a full memory evicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from storage.memory.embedder import Embedder
from storage.memory.entries import MemoryEntry
from storage.memory.removals import Removal
from storage.memory.view import MemoryView

Eviction = Literal["oldest", "lowest_gain"]

_CANDIDATES = 32
_DECIMALS = 6


@dataclass(frozen=True)
class MemoryLimits:
    """How a memory is kept compact; None does not limit."""

    merge_similarity: float | None = None
    """Least cosine similarity of near-duplicates."""
    max_entries: int | None = None
    evict: Eviction = "oldest"


def compact(
    view: MemoryView, entries: Sequence[MemoryEntry], limits: MemoryLimits, embedder: Embedder, version: str
) -> list[Removal]:
    """What has to leave, or not to enter, when `entries` are added to the memory `view` as `version`.

    Follows from the entries alone: searches are exact, equals are ordered by id.
    """
    merged: list[Removal] = []
    if limits.merge_similarity is not None:
        merged = _duplicates(view, entries, limits.merge_similarity, embedder, version)
    if limits.max_entries is None:
        return merged
    refused = {removal.entry_id for removal in merged}
    kept = [entry for entry in entries if entry.entry_id not in refused]
    return merged + _evicted(view, kept, limits.max_entries, limits.evict, version)


def _duplicates(
    view: MemoryView, entries: Sequence[MemoryEntry], least: float, embedder: Embedder, version: str
) -> list[Removal]:
    """New entries that repeat an earlier entry of the same task type.

    Both the situation and the text must be that similar: one situation can teach two lessons. The most
    similar earlier entry stands for the new one; of equals the one with the lesser id.
    """
    vectors = embedder.embed([entry.key_text for entry in entries])
    stored: list[list[tuple[MemoryEntry, float]]] = [[] for _ in entries]
    for task_type in sorted({entry.task_type for entry in entries}):
        places = [place for place, entry in enumerate(entries) if entry.task_type == task_type]
        found = view.search([entries[place].key_text for place in places], _CANDIDATES, task_type=task_type)
        for place, hits in zip(places, found, strict=True):
            stored[place] = [(hit.entry, hit.score) for hit in hits]
    removals: list[Removal] = []
    kept: list[int] = []
    for place, entry in enumerate(entries):
        fresh = [
            (entries[other], _similarity(vectors[place], vectors[other]))
            for other in kept
            if entries[other].task_type == entry.task_type
        ]
        near = [(other, score) for other, score in [*stored[place], *fresh] if score >= least]
        texts = embedder.embed([entry.text, *(other.text for other, _ in near)])
        same = [
            (min(score, _similarity(texts[0], text)), other)
            for (other, score), text in zip(near, texts[1:], strict=True)
        ]
        best = min(same, key=lambda pair: (-pair[0], pair[1].entry_id), default=None)
        if best is None or best[0] < least:
            kept.append(place)
        else:
            removals.append(Removal(entry.entry_id, "merged", "", version, best[1].entry_id, best[0]))
    return removals


def _evicted(
    view: MemoryView, entries: Sequence[MemoryEntry], at_most: int, policy: Eviction, version: str
) -> list[Removal]:
    """The entries beyond `at_most`: the oldest, or those with the lowest gain (of equals the oldest)."""
    excess = view.count() + len(entries) - at_most
    if excess <= 0:
        return []
    held = view.facts().select(
        "entry_id", "iteration", gain=(pl.col("reward_after") - pl.col("reward_before")).cast(pl.Float32)
    )
    new = pl.DataFrame(
        {
            "entry_id": [entry.entry_id for entry in entries],
            "iteration": [entry.iteration for entry in entries],
            "gain": [np.float32(entry.reward_after) - np.float32(entry.reward_before) for entry in entries],
        },
        schema=held.schema,
    )
    order = ["iteration", "entry_id"] if policy == "oldest" else ["gain", "iteration", "entry_id"]
    leaving = pl.concat([held, new]).sort(order).head(excess)
    return [Removal(entry_id, "evicted", policy, version) for entry_id in leaving["entry_id"]]


def _similarity(left: np.ndarray, right: np.ndarray) -> float:
    """Cosine similarity of two unit vectors, rounded as scores of a search are."""
    return round(float(np.dot(left.astype(np.float64), right.astype(np.float64))), _DECIMALS)
