"""Two worker processes search one run's memory while versions are added: each finds what its version
contains."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier

from storage.artifacts.store import ArtifactStore
from storage.memory.entries import MemoryEntry
from storage.memory.view import ReflectionMemory
from tests.embedders import WordEmbedder

VERSIONS, NEW = 6, 3
_together: Barrier


def _begin(together: Barrier) -> None:
    global _together
    _together = together


def _found(uri: str, versions: list[str]) -> list[list[str]]:
    """Entries found in each version, which is opened at the same moment as by another process."""
    memory = ReflectionMemory(uri, "run", ArtifactStore(uri), WordEmbedder())
    found = []
    for version in versions:
        _together.wait(60)
        hits = memory.at(version).search(["a lake"], top_k=VERSIONS * NEW)[0]
        found.append(sorted(hit.entry.entry_id for hit in hits))
    return found


def test_processes_that_open_versions_at_the_same_time_find_their_entries(
    store: ArtifactStore, commit_memory: Callable[..., str], entry: Callable[..., MemoryEntry]
) -> None:
    versions: list[str] = []
    expected: list[list[str]] = []
    held: list[str] = []
    for number in range(VERSIONS):
        new = [entry(NEW * number + one, f"lake {number} {one}") for one in range(NEW)]
        parent = {"parent": versions[-1]} if versions else {}
        versions.append(commit_memory(new, **parent))
        held += [each.entry_id for each in new]
        expected.append(sorted(held))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context, _begin, (context.Barrier(2),)) as processes:
        both = [processes.submit(_found, store.uri, versions) for _ in range(2)]
        assert [each.result() for each in both] == [expected, expected]
    memory = ReflectionMemory(store.uri, "run", store, WordEmbedder())
    assert memory.at(versions[-1]).count() == VERSIONS * NEW
