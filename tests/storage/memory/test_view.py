from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lancedb
import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError, StoreError
from storage.memory.entries import Embedder, MemoryEntry, write_delta
from storage.memory.search import MemoryFilter
from storage.memory.view import ReflectionMemory
from tests.embedders import WordEmbedder

Entry = Callable[..., MemoryEntry]
Commit = Callable[..., str]


@pytest.fixture
def memory(store: ArtifactStore, embedder: Embedder) -> ReflectionMemory:
    return ReflectionMemory(store.uri, "run", store, embedder)


def ids(memory: ReflectionMemory, version: str) -> list[str]:
    return memory.at(version).entries()["entry_id"].to_list()


def table_folder(store: ArtifactStore) -> Path:
    return Path(store.uri) / "memory" / "run"


def test_the_empty_memory_finds_nothing(memory: ReflectionMemory) -> None:
    view = memory.at("empty")
    assert view.count() == 0
    assert view.search(["a lake", "a box"], top_k=3) == [[], []]
    assert view.entries().height == 0


def test_a_memory_that_nothing_was_added_to_is_empty(memory: ReflectionMemory, commit_memory: Commit) -> None:
    first = commit_memory([])
    second = commit_memory([], parent=first)
    assert memory.at(second).count() == 0
    assert memory.at(second).digest() == memory.at("empty").digest()


def test_the_most_similar_come_first(memory: ReflectionMemory, commit_memory: Commit, entry: Entry) -> None:
    version = commit_memory(
        [entry(1, "a box to push"), entry(2, "a frozen lake"), entry(3, "a sum of numbers")]
    )
    (lake, box), (again, _) = memory.at(version).search(["a frozen lake", "ice on a lake"], top_k=2)
    assert lake.entry == entry(2, "a frozen lake")
    assert lake.score == pytest.approx(1.0, abs=1e-6)
    assert box.score < 0.5
    assert again.entry.entry_id == "m-002"
    assert again.score < lake.score


def test_equal_entries_come_by_text_however_many(
    memory: ReflectionMemory, commit_memory: Commit, entry: Entry
) -> None:
    """There are more ties than candidates in one fetch, and they were written in no particular order."""
    numbers = [(37 * number) % 101 for number in range(101)]
    version = commit_memory([entry(number, text=f"{number:03d} steps") for number in numbers])
    assert [hit.entry.entry_id for hit in memory.at(version).search(["a lake"], top_k=3)[0]] == [
        "m-000",
        "m-001",
        "m-002",
    ]


def test_the_search_can_be_narrowed(memory: ReflectionMemory, commit_memory: Commit, entry: Entry) -> None:
    version = commit_memory(
        [
            entry(1, task_type="lake's"),
            entry(2, credit=0.5),
            entry(4, "a far away lake"),
        ]
    )
    view = memory.at(version)

    def found(**narrowed: Any) -> list[str]:
        return [hit.entry.entry_id for hit in view.search(["a lake"], 9, MemoryFilter(**narrowed))[0]]

    assert found() == ["m-001", "m-002", "m-004"]
    assert found(task_type="lake's") == ["m-001"]
    assert found(minimum_credit=0.5) == ["m-002"]
    assert found(task_type="lake-4x4", minimum_credit=0.0) == ["m-002", "m-004"]
    assert found(task_type="no such") == []


def test_at_least_one_entry_is_asked_for(
    memory: ReflectionMemory, commit_memory: Commit, entry: Entry
) -> None:
    with pytest.raises(ValueError, match="top_k is 0"):
        memory.at(commit_memory([entry(1)])).search(["a lake"], top_k=0)


def test_a_version_is_as_it_was(memory: ReflectionMemory, commit_memory: Commit, entry: Entry) -> None:
    first = commit_memory([entry(1)])
    before = memory.at(first)
    second = commit_memory([entry(2)], parent=first)
    assert ids(memory, second) == ["m-001", "m-002"]
    assert ids(memory, first) == ["m-001"]
    assert before.count() == 1


def test_two_branches_do_not_see_each_other(
    memory: ReflectionMemory, commit_memory: Commit, entry: Entry
) -> None:
    first = commit_memory([entry(1)])
    left = commit_memory([entry(2)], parent=first)
    assert ids(memory, left) == ["m-001", "m-002"]
    right = commit_memory([entry(3)], parent=first)
    assert ids(memory, right) == ["m-001", "m-003"]
    assert ids(memory, left) == ["m-001", "m-002"]


def test_another_run_opens_the_same_memory(
    memory: ReflectionMemory, store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry
) -> None:
    first = commit_memory([entry(1)])
    second = commit_memory([entry(2)], parent=first)
    memory.at(first)
    memory.at(second)
    other = ReflectionMemory(store.uri, "other", store, embedder)
    assert other.at(second).digest() == memory.at(second).digest()
    assert other.at(second).search(["a lake"], 2) == memory.at(second).search(["a lake"], 2)


@pytest.mark.parametrize(
    "damage", ["tag", "all tags", "torn tag", "table", "versions", "data", "torn data", "row", "doubled row"]
)
def test_the_table_is_mended_from_the_artifacts(
    damage: str, store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry
) -> None:
    first = commit_memory([entry(1), entry(2)])
    second = commit_memory([entry(3)], parent=first)
    memory = ReflectionMemory(store.uri, "run", store, embedder)
    whole = {version: memory.at(version).digest() for version in (first, second)}

    table = lancedb.connect(table_folder(store)).open_table("reflections")
    if damage == "tag":
        table.tags.delete(second)
    elif damage == "all tags":
        for tag in table.tags.list():
            table.tags.delete(tag)
    elif damage == "table":
        shutil.rmtree(table_folder(store))
    elif damage == "data":
        for file in table_folder(store).glob("reflections.lance/data/*"):
            file.unlink()
    elif damage == "torn data":
        for file in table_folder(store).glob("reflections.lance/data/*"):
            file.write_bytes(file.read_bytes()[:20])
    elif damage == "torn tag":
        tag_file = table_folder(store) / "reflections.lance" / "_refs" / "tags" / f"{second}.json"
        tag_file.write_bytes(tag_file.read_bytes()[:5])
    elif damage == "versions":
        shutil.rmtree(table_folder(store) / "reflections.lance" / "_versions")
    elif damage == "row":
        table.delete("entry_id = 'm-001'")
        table.tags.update(second, table.version)
    else:
        table.add(table.to_arrow().slice(0, 1))
        table.tags.update(second, table.version)

    later = ReflectionMemory(store.uri, "run", store, embedder)
    assert later.at(second).digest() == whole[second]
    assert later.at(first).digest() == whole[first]
    assert later.at(second).count() == 3


def test_a_delta_added_before_a_kill_is_not_added_twice(
    memory: ReflectionMemory, store: ArtifactStore, commit_memory: Commit, entry: Entry, embedder: Embedder
) -> None:
    """The process died after the rows were in the table and before they were tagged."""
    first = commit_memory([entry(1)])
    second = commit_memory([entry(2)], parent=first)
    memory.at(second)
    lancedb.connect(table_folder(store)).open_table("reflections").tags.delete(second)
    later = ReflectionMemory(store.uri, "run", store, embedder)
    assert ids(later, second) == ["m-001", "m-002"]


def test_many_small_deltas_are_compacted_and_stay_what_they_were(
    memory: ReflectionMemory, store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry
) -> None:
    versions: list[str] = []
    for number in range(20):
        versions.append(commit_memory([entry(number)], parent=versions[-1] if versions else None))
    memory.at(versions[-1])
    table = lancedb.connect(table_folder(store)).open_table("reflections")
    assert table.stats()["fragment_stats"]["num_fragments"] < 20
    assert [memory.at(version).count() for version in versions] == list(range(1, 21))


def test_an_object_store_keeps_the_table_on_this_machine(
    embedder: Embedder, entry: Entry, object_store_uri: str
) -> None:
    store = ArtifactStore(object_store_uri)
    recipe = Recipe("index_memory", 1, {}, {}, 0)
    with store.create(recipe, run="run", iteration=1) as staging:
        write_delta(staging.path / "entries.parquet", [entry(1)], embedder)
        staging.commit()
    memory = ReflectionMemory(store.uri, "run", store, embedder)
    assert ids(memory, recipe.artifact_id) == ["m-001"]


def test_versions_that_are_none_are_refused(
    memory: ReflectionMemory, store: ArtifactStore, recipe: Recipe
) -> None:
    with pytest.raises(InputError, match="no artifact abc"):
        memory.at("abc")
    with store.create(recipe, run="run", iteration=1) as staging:
        staging.commit()
    with pytest.raises(InputError, match=r"\(evaluate\) is not a memory version"):
        memory.at(recipe.artifact_id)


def test_a_damaged_delta_is_never_read(
    memory: ReflectionMemory, store: ArtifactStore, commit_memory: Commit, entry: Entry
) -> None:
    version = commit_memory([entry(1)])
    path = store.open(version).path("entries.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    fresh = ArtifactStore(store.uri)
    with pytest.raises(DamagedArtifact, match=r"entries\.parquet has SHA-256"):
        ReflectionMemory(store.uri, "other", fresh, memory.embedder).at(version)


def test_a_query_by_another_model_is_refused(
    store: ArtifactStore, commit_memory: Commit, entry: Entry
) -> None:
    version = commit_memory([entry(1)])
    other = WordEmbedder()
    other.embedding_model = "other@0"
    with pytest.raises(StoreError, match=r"embedded by words@1 and the query by other@0"):
        ReflectionMemory(store.uri, "run", store, other).at(version).search(["a lake"], 1)
