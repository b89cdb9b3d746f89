"""What a new memory version changes: new texts are added, evidence updates entries, near-duplicates are
merged, and a full memory evicts.

The change depends only on the entries and the trajectories: searches are exact, and ties are ordered.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from storage.memory.chain import ENTRIES_FILE, OPERATIONS_FILE
from storage.memory.credit import Evidence
from storage.memory.entries import Embedder, MemoryEntry, write_delta
from storage.memory.operations import Operation, by_entry, changed, write_operations
from storage.memory.search import MemoryFilter
from storage.memory.view import MemoryView

Eviction = Literal["oldest", "lowest_credit"]

_CANDIDATES = 32
_DECIMALS = 6
_MARGIN = 1e-3
"""More than a product of unit vectors in 32 bits can be wrong by."""


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
        texts = [entries[place].key_text for place in places]
        found = view.search(texts, _CANDIDATES, MemoryFilter(task_type))
        for place, hits in zip(places, found, strict=True):
            earlier[place] = [hit.entry for hit in hits]
    texts = list(dict.fromkeys(each.text for each in [*entries, *(one for some in earlier for one in some)]))
    vectors = dict(zip(texts, embedder.embed(texts), strict=True)) if texts else {}
    merged: dict[str, tuple[str, float]] = {}
    kept: dict[str, list[MemoryEntry]] = {}
    rows: dict[str, np.ndarray] = {}
    counts = Counter(entry.task_type for entry in entries)
    for entry, candidates in zip(entries, earlier, strict=True):
        same, vector = kept.setdefault(entry.task_type, []), vectors[entry.text]
        if not same:
            rows[entry.task_type] = np.empty((counts[entry.task_type], len(vector)), np.float32)
        before = rows[entry.task_type]
        # One product finds the few that the exact comparison, which takes far longer, can find alike.
        near = np.flatnonzero(before[: len(same)] @ vector >= least - _MARGIN)
        others = [*candidates, *(same[place] for place in near)]
        alike = [(_similarity(vectors[entry.text], vectors[other.text]), other) for other in others]
        similarity, best = min(
            alike, key=lambda pair: (-pair[0], pair[1].text, pair[1].entry_id), default=(-1.0, entry)
        )
        if similarity >= least:
            merged[entry.entry_id] = (best.entry_id, similarity)
        else:
            before[len(same)] = vector
            same.append(entry)
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


@dataclass(frozen=True)
class MemoryChange:
    """The entries that a version adds, and its operations."""

    entries: tuple[MemoryEntry, ...]
    operations: tuple[Operation, ...]
    size: int
    """Number of entries of the memory after the change."""

    @property
    def counters(self) -> dict[str, int]:
        """How many entries were changed, by the kind of change."""
        counts = {
            "entries_added": len(self.entries),
            "entries": self.size,
            "copies": sum(each.support for each in self.operations),
        }
        for each in self.operations:
            name = f"entries_{each.reason or _PARTICIPLES[each.operation]}"
            counts[name] = counts.get(name, 0) + 1
        return counts


_PARTICIPLES = {"update": "updated", "return": "returned", "remove": "removed"}


def plan_change(
    view: MemoryView,
    written: Sequence[MemoryEntry],
    evidence: Sequence[Evidence],
    limits: MemoryLimits,
    embedder: Embedder,
    *,
    iteration: int,
    version: str,
    replaced: Mapping[str, str] | None = None,
) -> MemoryChange:
    """What memory version `version` changes in the memory `view`.

    A new text that the memory already has for the task type is not added: a `return` operation adds to the
    support of the existing entry. Of equal new texts the first is added, and the others return it. Evidence
    updates the entries that are still there. Last, entries beyond the limit are evicted.

    Args:
        written: texts that helped, in order, one entry for each time that a text was written.
        evidence: what trajectories show about entries.
        replaced: entries that others replace -> by what they are replaced; an entry whose text is written
            again stays.
    """
    added, operations = _returned(view, written, iteration, version)
    if limits.merge_similarity is not None:
        near = near_duplicates(view, added, limits.merge_similarity, embedder)
        operations = _redirected(operations, near)
        operations += [
            _return(near[entry.entry_id][0], [entry], iteration, version, near[entry.entry_id][1])
            for entry in added
            if entry.entry_id in near
        ]
        added = [entry for entry in added if entry.entry_id not in near]
    operations += _updates(view, evidence, iteration, version)
    removed = _removed(view, operations, replaced or {}, iteration, version)
    operations += removed
    size = view.count() + len(added) - len(removed)
    if limits.max_entries is not None and size > limits.max_entries:
        evicted_ids = _leaving(view, added, operations, limits, size - limits.max_entries)
        operations += [
            Operation("remove", entry_id, iteration, version, reason="evicted", detail=limits.evict)
            for entry_id in evicted_ids
        ]
        size -= len(evicted_ids)
    return MemoryChange(tuple(added), tuple(operations), size)


def write_change(folder: Path, change: MemoryChange, embedder: Embedder) -> dict[str, int]:
    """Write the files of a memory version; returns file name -> rows. Equal changes give equal bytes."""
    rows = {ENTRIES_FILE: write_delta(folder / ENTRIES_FILE, change.entries, embedder)}
    if change.operations:
        rows[OPERATIONS_FILE] = write_operations(folder / OPERATIONS_FILE, change.operations)
    return rows


def _returned(
    view: MemoryView, written: Sequence[MemoryEntry], iteration: int, version: str
) -> tuple[list[MemoryEntry], list[Operation]]:
    """The texts that are new, and an operation for each entry whose text was written again."""
    known = view.with_texts([entry.text_key for entry in written])
    added: list[MemoryEntry] = []
    copies: dict[str, list[MemoryEntry]] = {}
    for entry in written:
        there = known.setdefault(entry.text_key, entry)
        if there is entry:
            added.append(entry)
        else:
            copies.setdefault(there.entry_id, []).append(entry)
    return added, [_return(entry_id, same, iteration, version) for entry_id, same in copies.items()]


def _return(
    into: str, written: Sequence[MemoryEntry], iteration: int, version: str, similarity: float | None = None
) -> Operation:
    """The operation for new texts, equal or nearly so, that return the entry `into`."""
    sources = (each.source_trajectory_id for each in written)
    return Operation(
        "return",
        into,
        iteration,
        version,
        support=sum(each.support for each in written),
        trajectory_ids=tuple(each for each in sources if each is not None),
        parent_entry_ids=tuple(dict.fromkeys(id_ for each in written for id_ in each.parent_entry_ids)),
        similarity=similarity,
    )


def _redirected(operations: Sequence[Operation], near: dict[str, tuple[str, float]]) -> list[Operation]:
    """Operations on new entries that are near-duplicates, changed to operate on the entries kept for them."""
    return [
        replace(each, entry_id=near[each.entry_id][0], similarity=near[each.entry_id][1])
        if each.entry_id in near
        else each
        for each in operations
    ]


def _updates(view: MemoryView, evidence: Sequence[Evidence], iteration: int, version: str) -> list[Operation]:
    """Credit and use of the entries that are still there, by id."""
    held = view.get([each.entry_id for each in evidence])
    return [
        Operation(
            "update",
            each.entry_id,
            iteration,
            version,
            credit_sum=each.credit_sum,
            credit_count=each.credit_count,
            retrievals=each.retrievals,
        )
        for each in evidence
        if each.entry_id in held
    ]


def _removed(
    view: MemoryView,
    operations: Sequence[Operation],
    replaced: Mapping[str, str],
    iteration: int,
    version: str,
) -> list[Operation]:
    """The removal of entries that were replaced, by id; entries whose text was written again stay."""
    returned = {each.entry_id for each in operations if each.operation == "return"}
    held = view.get([entry_id for entry_id in replaced if entry_id not in returned])
    return [
        Operation("remove", entry_id, iteration, version, reason="replaced", detail=replaced[entry_id])
        for entry_id in sorted(held)
    ]


def _leaving(
    view: MemoryView,
    added: Sequence[MemoryEntry],
    operations: Sequence[Operation],
    limits: MemoryLimits,
    excess: int,
) -> list[str]:
    """Ids of the `excess` entries to evict, judged as they are after the operations."""
    gone = {each.entry_id for each in operations if each.operation == "remove"}
    done = by_entry(each for each in operations if each.entry_id not in gone)
    now = {**view.get(list(done)), **{entry.entry_id: entry for entry in added}}
    for entry_id, operations_on_it in done.items():
        for operation in operations_on_it:
            now[entry_id] = changed(now[entry_id], operation)
    return evicted(
        view.facts().filter(~pl.col("entry_id").is_in(list(gone))),
        [Held(each.entry_id, each.text_key, each.last_iteration, each.credit) for each in now.values()],
        limits.evict,
        excess,
    )
