"""Merging entries chunk by chunk: what is kept, which entries a new text replaces, and what is removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from storage.memory.entries import MemoryEntry

MERGED_AWAY = "in a merge"


@dataclass(frozen=True)
class Item:
    """A text in a merge: an entry, or what the extractor wrote in the request `request_id` to replace the
    entries `parents`."""

    text: str
    entry_id: str = ""
    request_id: str = ""
    parents: tuple[str, ...] = ()


@dataclass
class Scope:
    """The entries of one task type on their way through a merge, `chunk` at a time.

    What the extractor made of a chunk is shown again with the next one. A chunk whose answer is ill-formed or
    empty is kept unchanged, and the next begins without it (as in the official code).
    """

    entries: Sequence[MemoryEntry]
    chunk: int
    _next: int = 0
    _carried: list[Item] = field(default_factory=list)
    _kept: list[Item] = field(default_factory=list)

    @property
    def shown(self) -> list[Item]:
        """The texts of the next request; none when the merge is over."""
        if self._next >= len(self.entries):
            return []
        some = self.entries[self._next : self._next + self.chunk]
        return [*(Item(entry.text, entry.entry_id) for entry in some), *self._carried]

    def answer(self, texts: Sequence[str] | None, request_id: str) -> None:
        """Apply the answer to a request that showed `shown`; `texts` is None where it is ill-formed, and
        empty where nothing changes."""
        shown = self.shown
        self._next += self.chunk
        if not texts:
            self._kept += shown
            self._carried = []
            return
        known = {item.text: item for item in reversed(shown)}
        distinct = list(dict.fromkeys(texts))
        gone = [item for item in shown if item.text not in distinct or known[item.text] is not item]
        parents = tuple(dict.fromkeys(one for item in gone for one in (item.entry_id, *item.parents) if one))
        self._carried = [known.get(text) or Item(text, "", request_id, parents) for text in distinct]

    @property
    def remaining(self) -> list[Item]:
        """The kept and the new texts, once the merge is over."""
        return [*self._kept, *self._carried]


def merged_entries(
    scope: Scope, key: str, iteration: int, memory_version: str, extractor_version: str
) -> list[MemoryEntry]:
    """The entries that a merge has written. Task and situation are those of the first parent."""
    by_id = {entry.entry_id: entry for entry in scope.entries}
    written = []
    for number, item in enumerate(item for item in scope.remaining if not item.entry_id):
        source = by_id[item.parents[0]] if item.parents else scope.entries[0]
        written.append(
            replace(
                source,
                entry_id=f"m-{item.request_id}-{number}",
                text=item.text,
                key_text=item.text if key == "text" else source.key_text,
                source_trajectory_id=item.request_id,
                iteration=iteration,
                last_iteration=iteration,
                policy_version=extractor_version,
                parent_entry_ids=item.parents,
                memory_version=memory_version,
                operation="update",
                support=1,
                credit=0.0,
                credit_count=0,
                retrievals=0,
            )
        )
    return written


def replaced_in(scope: Scope) -> dict[str, str]:
    """Ids of the entries that the merge removed, each with how it left."""
    kept = {item.entry_id for item in scope.remaining}
    return {entry.entry_id: MERGED_AWAY for entry in scope.entries if entry.entry_id not in kept}
