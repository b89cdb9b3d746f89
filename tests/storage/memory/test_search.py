"""Searching a memory by meaning, by words and by both; exactly, and by the indexes of a large one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import lancedb
import numpy as np
import numpy.typing as npt
import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory.entries import Embedder, MemoryEntry, write_embedded
from storage.memory.search import Found, MemoryFilter, Scoring, fuse
from storage.memory.view import MemoryView, ReflectionMemory

Entry = Callable[..., MemoryEntry]
Commit = Callable[..., str]


@pytest.fixture
def view(store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry) -> MemoryView:
    version = commit_memory(
        [
            entry(1, "a frozen lake", text="walk around the holes", environment="lake", iteration=1),
            entry(2, "a box to push", text="never push into a corner", environment="sokoban", iteration=2),
            entry(3, "ice on a pond", text="go slowly", environment="lake", iteration=3),
        ]
    )
    return ReflectionMemory(store.uri, "run", store, embedder).at(version)


def found(view: MemoryView, text: str, chosen: MemoryFilter = MemoryFilter(), **options: Any) -> list[str]:  # noqa: B008
    return [hit.entry.entry_id for hit in view.search([text], 9, chosen, **options)[0]]


def test_words_are_found_in_reflection_and_situation(view: MemoryView) -> None:
    assert found(view, "a hole", mode="text") == ["m-001"]
    assert found(view, "PUSHING boxes", mode="text") == ["m-002"]
    assert set(found(view, "lake or corner", mode="text")) == {"m-001", "m-002"}
    assert found(view, "the", mode="text") == []
    assert found(view, 'an "unfinished AND (query: ~^', mode="text") == []


def test_by_words_the_entry_with_most_of_them_is_first(view: MemoryView) -> None:
    hits = view.search(["push the box into the lake"], 9, mode="text")[0]
    assert [hit.entry.entry_id for hit in hits] == ["m-002", "m-001"]
    assert hits[0].score > hits[1].score > 0


def test_a_hybrid_search_adds_reciprocal_ranks(view: MemoryView) -> None:
    """By meaning all three are ranked; by words only the first is, since only it has `holes`."""
    by_meaning = found(view, "holes in a frozen lake")
    hits = view.search(["holes in a frozen lake"], 9, mode="hybrid")[0]
    assert (by_meaning[0], hits[0].entry.entry_id) == ("m-001", "m-001")
    assert hits[0].score == pytest.approx(2 / 61, abs=1e-6)
    assert {hit.entry.entry_id: hit.score for hit in hits[1:]} == {
        by_meaning[1]: pytest.approx(1 / 62, abs=1e-6),
        by_meaning[2]: pytest.approx(1 / 63, abs=1e-6),
    }


def test_fusion_ranks_what_both_found_before_what_one_did() -> None:
    """b: 1/62 + 1/61, a: 1/61, c: 1/62."""
    fused = fuse([[Found("a", 0.9), Found("b", 0.8)], [Found("b", 7.0), Found("c", 5.0)]], top_k=3)
    assert [(hit.entry_id, hit.score) for hit in fused] == [
        ("b", round(1 / 62 + 1 / 61, 6)),
        ("a", round(1 / 61, 6)),
        ("c", round(1 / 62, 6)),
    ]
    by_id = fuse([[Found("y", 1.0)], [Found("x", 1.0)]], top_k=2)
    assert [hit.entry_id for hit in by_id] == ["x", "y"]
    by_text = fuse([[Found("y", 1.0, "go left")], [Found("x", 1.0, "go right")]], top_k=2)
    assert [hit.entry_id for hit in by_text] == ["y", "x"]


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_equals_are_in_the_order_of_their_texts_whatever_their_ids_are(
    store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry, mode: str
) -> None:
    """Ids depend on those of artifacts. For a search by words, texts with equally many words are equal."""
    said = [
        entry(1, "a pond", text="c pond"),
        entry(2, "a pond", text="a pond"),
        entry(3, "a pond", text="b pond"),
    ]
    view = ReflectionMemory(store.uri, "run", store, embedder).at(commit_memory(said))
    assert found(view, "a pond", mode=mode) == ["m-002", "m-003", "m-001"]
    (hits,) = view.retrieve(["a pond"], 2, Scoring())
    assert [hit.entry.text for hit in hits] == ["a pond", "b pond"]
    recent = Scoring(min_similarity=1.0, fallback="recent")
    (newest,) = view.retrieve(["sums"], 2, recent)
    assert [hit.entry.text for hit in newest] == ["a pond", "b pond"]


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
def test_every_mode_can_be_narrowed(view: MemoryView, mode: str) -> None:
    def ids(**narrowed: Any) -> set[str]:
        return set(found(view, "lake box pond", MemoryFilter(**narrowed), mode=mode))

    assert ids() == {"m-001", "m-002", "m-003"}
    assert ids(environment="lake") == {"m-001", "m-003"}
    assert ids(first_iteration=2) == {"m-002", "m-003"}
    assert ids(last_iteration=2) == {"m-001", "m-002"}
    assert ids(environment="lake", first_iteration=2) == {"m-003"}
    assert ids(minimum_credit=1.5) == set()


class Vectors:
    """Gives texts the vectors that they were made with."""

    model = "made"
    embedding_model = "made"

    def __init__(self, vectors: npt.NDArray[np.float32]) -> None:
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return np.stack([self._vectors[int(text)] for text in texts])


def unit_vectors(count: int) -> npt.NDArray[np.float32]:
    """Vectors around 50 centres, since embeddings of texts form clusters."""
    stream = np.random.default_rng(7)
    centres = stream.normal(size=(50, 128))
    drawn = centres[stream.integers(0, 50, count)] + 0.4 * stream.normal(size=(count, 128))
    units: npt.NDArray[np.float64] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return units.astype(np.float32)


def test_a_large_memory_has_indexes_and_exact_search_does_not_depend_on_them(
    monkeypatch: pytest.MonkeyPatch, store: ArtifactStore, entry: Entry
) -> None:
    """Here a memory is large from 600 entries on: of two versions that add 500 each, only the second is."""
    monkeypatch.setattr("storage.memory.index.INDEXED_ROWS", 600)
    vectors = unit_vectors(1000)
    versions: list[str] = []
    for start in (0, 500):
        inputs = {"memory": versions[-1]} if versions else {}
        recipe = Recipe("index_memory", 2, {"start": start}, inputs, 0)
        entries = [
            entry(number, f"situation {number}", text=f"word{number % 10} lesson", iteration=number % 4)
            for number in range(start, start + 500)
        ]
        with store.create(recipe, run="run", iteration=1) as staging:
            write_embedded(staging.path / "entries.parquet", entries, vectors[start : start + 500], "made")
            versions.append(staging.commit().manifest.artifact_id)
    memory = ReflectionMemory(store.uri, "run", store, Vectors(vectors))
    small, large = (memory.at(version) for version in versions)
    assert (small.vector_index, large.vector_index is not None) == (None, True)
    assert large.count() == 1000

    queries = [str(number) for number in range(0, 1000, 50)]
    nearest = np.argsort(-(vectors[::50] @ vectors.T), axis=1)[:, :5]
    exact = large.search(queries, 5)
    assert [[int(hit.entry.entry_id[2:]) for hit in hits] for hits in exact] == nearest.tolist()
    indexed = large.search(queries, 5, exact=False)
    shared = [
        len({hit.entry.entry_id for hit in mine} & {hit.entry.entry_id for hit in true})
        for mine, true in zip(indexed, exact, strict=True)
    ]
    assert sum(shared) >= 0.95 * 5 * len(queries)
    narrowed = large.search(queries[:2], 5, MemoryFilter(first_iteration=3, last_iteration=3), exact=False)
    assert {hit.entry.iteration for hits in narrowed for hit in hits} == {3}

    monkeypatch.setattr("storage.memory.search.PROBES", 1)
    rare = large.search(queries[:1], 5, MemoryFilter(None, None, 0.0, 3, 3), exact=False)
    assert len(rare[0]) == 5
    assert large.search(queries[:1], 5, MemoryFilter(minimum_credit=1.5), exact=False) == [[]]

    by_word = large.search(["word3"], 200, mode="text")[0]
    assert {int(hit.entry.entry_id[2:]) % 10 for hit in by_word} == {3}
    assert len(by_word) == 100
    assert len(small.search(["word3"], 200, mode="text")[0]) == 50


def test_entries_of_another_type_are_found_where_nothing_near_the_query_has_it(
    monkeypatch: pytest.MonkeyPatch, store: ArtifactStore, entry: Entry
) -> None:
    """2000 entries are in 44 partitions. A search that reads at least ten of them finds nearly all entries of
    another type, and the only two entries of the type `rare`."""
    monkeypatch.setattr("storage.memory.index.INDEXED_ROWS", 600)
    monkeypatch.setattr("storage.memory.search.PROBES", 10)
    vectors = unit_vectors(2000)
    types = np.argmax(vectors @ vectors[:8].T, axis=1)
    names = [f"type {number}" for number in types]
    names[77] = names[1077] = "rare"
    recipe = Recipe("index_memory", 2, {}, {}, 0)
    entries = [entry(number, task_type=name) for number, name in enumerate(names)]
    with store.create(recipe, run="run", iteration=1) as staging:
        write_embedded(staging.path / "entries.parquet", entries, vectors, "made")
        staging.commit()
    memory = ReflectionMemory(store.uri, "run", store, Vectors(vectors))
    view = memory.at(recipe.artifact_id)

    recalls = []
    for number in range(0, 2000, 40):
        other = f"type {(types[number] + 3) % 8}"
        true, mine = (
            {hit.entry.entry_id for hit in view.search([str(number)], 5, MemoryFilter(other), exact=exact)[0]}
            for exact in (True, False)
        )
        recalls.append(len(true & mine) / 5)
    assert np.mean(recalls) >= 0.93
    rare = view.search(["3"], 5, MemoryFilter("rare"), exact=False)[0]
    assert {hit.entry.entry_id for hit in rare} == {"m-077", "m-1077"}
    assert rare == view.search(["3"], 5, MemoryFilter("rare"))[0]


def test_an_index_that_was_added_to_often_is_learnt_again(
    monkeypatch: pytest.MonkeyPatch, store: ArtifactStore, entry: Entry
) -> None:
    """After 700 entries in one version, seven versions of 10 entries, each more than a hundredth, are added
    to the indexes one by one."""
    monkeypatch.setattr("storage.memory.index.INDEXED_ROWS", 600)
    vectors = unit_vectors(770)
    memory = ReflectionMemory(store.uri, "run", store, Vectors(vectors))
    parts, learnt_from, version, start = [], set(), None, 0
    for count in (700, *[10] * 7):
        recipe = Recipe("index_memory", 2, {"start": start}, {"memory": version} if version else {}, 0)
        entries = [entry(number) for number in range(start, start + count)]
        with store.create(recipe, run="run", iteration=1) as staging:
            write_embedded(staging.path / "entries.parquet", entries, vectors[start : start + count], "made")
            version = staging.commit().manifest.artifact_id
        start += count
        memory.at(version)
        table = lancedb.connect(f"{store.uri}/memory/run").open_table("reflections")
        [name] = [index.name for index in table.list_indices() if index.name.startswith("vector-of-")]
        statistics = table.index_stats(name)
        assert statistics.num_unindexed_rows == 0
        parts.append(statistics.num_indices)
        learnt_from.add(name)
    assert max(parts) <= 4
    assert "vector-of-700" in learnt_from
    assert len(learnt_from) > 1
    found = memory.at(str(version)).search(["765"], 1, exact=False)[0]
    assert [hit.entry.entry_id for hit in found] == ["m-765"]


@pytest.mark.parametrize("length", [0.0, float("nan")])
def test_a_query_without_a_direction_is_refused_and_says_what_helps(
    view: MemoryView, embedder: Embedder, monkeypatch: pytest.MonkeyPatch, length: float
) -> None:
    unit = embedder.embed(["a frozen lake"])
    monkeypatch.setattr(embedder, "embed", lambda texts: np.repeat(unit * length, len(texts), axis=0))
    said = r"gave a vector of length (0.0|nan) for the query 'a hole': .* Search by words"
    for mode in ("vector", "hybrid"):
        with pytest.raises(InputError, match=said):
            view.search(["a hole"], 9, mode=mode)
    with pytest.raises(InputError, match=said):
        view.search(["a hole"], 9, exact=False)
    with pytest.raises(InputError, match=said):
        view.retrieve(["a hole"], 9, Scoring())
    assert found(view, "a hole", mode="text") == ["m-001"]
