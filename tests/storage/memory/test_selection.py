"""What a memory keeps: near-duplicates are merged, a full memory evicts; the versions say why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.chain import EMPTY_MEMORY, read_chain
from storage.memory.embedder import Embedder
from storage.memory.entries import MemoryEntry, write_delta
from storage.memory.reflection_memory import ReflectionMemory
from storage.memory.removals import Removal, write_removals
from storage.memory.selection import MemoryLimits, compact
from storage.memory.use import growth, stands_for

Entry = Callable[..., MemoryEntry]
Add = Callable[..., str]


@pytest.fixture
def memory(store: ArtifactStore, embedder: Embedder) -> ReflectionMemory:
    return ReflectionMemory(store.uri, "run", store, embedder)


@pytest.fixture
def add(store: ArtifactStore, embedder: Embedder, memory: ReflectionMemory) -> Add:
    """Commits entries after a version, within limits."""

    def commit(
        entries: Sequence[MemoryEntry], limits: MemoryLimits | None = None, parent: str | None = None
    ) -> str:
        ids = [entry.entry_id for entry in entries]
        recipe = Recipe("index_memory", 2, {"ids": ids}, {"memory": parent} if parent else {}, 0)
        version = recipe.artifact_id
        marked = [MemoryEntry(**{**vars(entry), "memory_version": version}) for entry in entries]
        removals = compact(
            memory.at(parent or EMPTY_MEMORY), marked, limits or MemoryLimits(), embedder, version
        )
        with store.create(recipe, run="run", iteration=len(ids)) as staging:
            write_delta(staging.path / "entries.parquet", marked, embedder)
            write_removals(staging.path / "removals.parquet", removals)
            staging.commit(memory_version=version)
        return version

    return commit


def ids(memory: ReflectionMemory, version: str) -> list[str]:
    return memory.at(version).entries()["entry_id"].to_list()


MERGE = MemoryLimits(merge_similarity=0.85)


def test_a_near_duplicate_is_merged_with_the_earlier_entry(
    memory: ReflectionMemory, store: ArtifactStore, add: Add, entry: Entry
) -> None:
    first = add([entry(1, "a frozen lake", text="walk around the hole")])
    second = add(
        [
            entry(2, "a frozen lake.", text="walk around the hole!"),
            entry(3, "a frozen lake", text="start by going down twice"),
            entry(4, "a frozen lake", text="walk around the hole", task_type="lake-8x8"),
        ],
        MERGE,
        first,
    )
    assert ids(memory, second) == ["m-001", "m-003", "m-004"]
    deltas = read_chain(store, second)[1]
    [removal] = deltas[1].removals()
    assert (removal.entry_id, removal.reason, removal.merged_into) == ("m-002", "merged", "m-001")
    assert removal.similarity is not None
    assert 0.85 <= removal.similarity < 1.0
    assert stands_for(deltas) == {"m-001": 2}


def test_new_entries_are_merged_among_themselves(memory: ReflectionMemory, add: Add, entry: Entry) -> None:
    version = add([entry(number, text="walk around the hole") for number in (3, 1, 2)], MERGE)
    assert ids(memory, version) == ["m-003"]


def test_without_a_similarity_nothing_is_merged(memory: ReflectionMemory, add: Add, entry: Entry) -> None:
    assert ids(memory, add([entry(1), entry(2, text="reflection 1")])) == ["m-001", "m-002"]


def test_a_full_memory_lets_the_oldest_go(memory: ReflectionMemory, add: Add, entry: Entry) -> None:
    limits = MemoryLimits(max_entries=3, evict="oldest")
    first = add([entry(3, iteration=1), entry(2, iteration=1)], limits)
    second = add([entry(1, iteration=2), entry(4, iteration=2)], limits, first)
    assert ids(memory, second) == ["m-001", "m-003", "m-004"]
    assert ids(memory, first) == ["m-002", "m-003"]


def test_a_full_memory_lets_the_lowest_gain_go_even_if_it_is_new(
    memory: ReflectionMemory, store: ArtifactStore, add: Add, entry: Entry
) -> None:
    limits = MemoryLimits(max_entries=2, evict="lowest_gain")
    first = add([entry(1, reward_after=0.5), entry(2, reward_after=0.75)], limits)
    second = add([entry(3, reward_after=0.25), entry(4, reward_after=0.5)], limits, first)
    assert ids(memory, second) == ["m-002", "m-004"]
    removals = read_chain(store, second)[1][1].removals()
    assert removals == [
        Removal("m-003", "evicted", "lowest_gain", second),
        Removal("m-001", "evicted", "lowest_gain", second),
    ]


def test_growth_tells_what_each_version_changed(store: ArtifactStore, add: Add, entry: Entry) -> None:
    first = add([entry(1), entry(2, text="another thing altogether")])
    limits = MemoryLimits(merge_similarity=0.95, max_entries=2)
    second = add([entry(3, text="reflection 1"), entry(4, "a box"), entry(5, "a sum")], limits, first)
    rows = growth(read_chain(store, second)[1])
    counts = [[row[name] for name in ("added", "merged", "evicted", "forgotten", "entries")] for row in rows]
    assert counts == [[2, 0, 0, 0, 2], [2, 1, 2, 0, 2]]


def test_a_table_that_is_lost_is_made_again_without_what_was_removed(
    store: ArtifactStore, embedder: Embedder, add: Add, entry: Entry
) -> None:
    first = add([entry(1), entry(2, "a box")])
    second = add([entry(3, "a sum")], MemoryLimits(max_entries=2), first)
    third = add([entry(4, "a word")], MemoryLimits(max_entries=2), second)
    other = ReflectionMemory(store.uri, "other", store, embedder)
    assert ids(other, third) == ["m-003", "m-004"]
    assert ids(other, second) == ["m-002", "m-003"]
    assert ids(other, first) == ["m-001", "m-002"]
