"""Search results without near-duplicates: entries that say almost the same are grouped under the best one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from storage.memory.view import MemoryHit

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
