"""Retrieval by similarity, credit, support and number of uses; numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from storage.artifacts.store import ArtifactStore
from storage.memory.entries import Embedder, MemoryEntry
from storage.memory.search import MemoryFilter, Scoring
from storage.memory.view import MemoryView, ReflectionMemory

Entry = Callable[..., MemoryEntry]
Commit = Callable[..., str]


@pytest.fixture
def view(store: ArtifactStore, embedder: Embedder, commit_memory: Commit, entry: Entry) -> MemoryView:
    """By similarity to "a lake" the order is 1, 2, 3."""
    version = commit_memory(
        [
            entry(1, "a lake", last_iteration=3),
            entry(2, "a lake in winter", credit=0.5, last_iteration=5),
            entry(3, "a box", support=20, retrievals=7, last_iteration=5),
            entry(4, "a lake", task_type="pond", last_iteration=9),
        ]
    )
    return ReflectionMemory(store.uri, "run", store, embedder).at(version)


def found(view: MemoryView, top_k: int = 9, text: str = "a lake", **scoring: Any) -> list[tuple[str, float]]:
    hits = view.retrieve([text], top_k, Scoring(**scoring), "lake-4x4")[0]
    return [(hit.entry.entry_id, hit.score) for hit in hits]


def test_the_score_adds_credit_and_support_and_takes_off_use() -> None:
    """.8 + 2 * .25 + .1 ln 10 - .4 ln(1 + 3)."""
    scoring = Scoring(credit_weight=2.0, support_weight=0.1, retrieval_penalty=0.4)
    expected = 0.8 + 0.5 + 0.1 * math.log(10) - 0.4 * math.log(4)
    assert scoring.score(0.8, 0.25, 10, 3) == pytest.approx(expected, abs=1e-6)


def test_what_was_not_shown_yet_comes_before_what_is_nearer_and_was_shown_often() -> None:
    """Complementary RL, lambda .4: .80 unused beats .90 used three times, which has .345."""
    scoring = Scoring(retrieval_penalty=0.4)
    assert scoring.score(0.9, 0.0, 1, 3) == pytest.approx(0.345, abs=5e-4)
    assert scoring.score(0.8, 0.0, 1, 0) == 0.8


def test_without_weights_it_is_the_vector_search(view: MemoryView) -> None:
    searched = view.search(["a lake"], 9, MemoryFilter("lake-4x4"))[0]
    assert found(view) == [(hit.entry.entry_id, hit.score) for hit in searched]
    assert [entry_id for entry_id, _ in found(view)] == ["m-001", "m-002", "m-003"]


def test_credit_and_support_change_the_order(view: MemoryView) -> None:
    similar = dict(found(view))
    by_credit = found(view, credit_weight=1.0)
    assert by_credit[0][0] == "m-002"
    assert by_credit[0][1] == pytest.approx(similar["m-002"] + 0.5, abs=1e-6)
    by_support = found(view, support_weight=1.0)
    assert by_support[0][0] == "m-003"
    assert by_support[0][1] == pytest.approx(similar["m-003"] + math.log(20), abs=1e-6)
    both = found(view, support_weight=1.0, retrieval_penalty=10.0)
    assert [entry_id for entry_id, _ in both] == ["m-001", "m-002", "m-003"]


def test_only_candidates_are_scored(view: MemoryView) -> None:
    """Only the two most similar entries are; the third has the most support."""
    ranked = found(view, top_k=1, support_weight=1.0, candidates=2)
    assert [entry_id for entry_id, _ in ranked] == ["m-001"]


def test_what_is_not_similar_enough_is_not_retrieved(view: MemoryView) -> None:
    assert [entry_id for entry_id, _ in found(view, min_similarity=0.999)] == ["m-001"]
    # Similarity decides, not the score.
    assert found(view, support_weight=1.0, min_similarity=0.999) == [("m-001", 1.0)]
    assert found(view, text="sums", min_similarity=0.9) == []


def test_where_nothing_is_the_newest_are(view: MemoryView) -> None:
    """The newest entries of the task type; 2 and 3 were written in the same iteration."""
    fallback: dict[str, Any] = {"min_similarity": 0.9, "fallback": "recent"}
    assert [entry_id for entry_id, _ in found(view, top_k=2, text="sums", **fallback)] == ["m-002", "m-003"]
    assert [entry_id for entry_id, _ in found(view, top_k=2, **fallback)] == ["m-001"]


def test_an_empty_memory_has_nothing_recent(store: ArtifactStore, embedder: Embedder) -> None:
    view = ReflectionMemory(store.uri, "run", store, embedder).at("empty")
    assert view.retrieve(["a lake"], 3, Scoring(min_similarity=0.5, fallback="recent")) == [[]]


def test_exploration_tries_what_was_seldom_shown() -> None:
    """.5 sqrt(ln 8 / 1) and .5 sqrt(ln 8 / 8): seven of seven retrievals showed the second."""
    scoring = Scoring(exploration=0.5)
    assert scoring.score(0.0, 0.0, 1, 0, 7) == pytest.approx(0.5 * math.log(8) ** 0.5, abs=1e-6)
    assert scoring.score(0.0, 0.0, 1, 7, 7) == pytest.approx(0.5 * (math.log(8) / 8) ** 0.5, abs=1e-6)


def test_exploration_counts_the_retrievals_of_all_candidates(view: MemoryView) -> None:
    """Entry 3 was shown seven times, the others never."""
    similar, scored = dict(found(view)), dict(found(view, exploration=0.1))
    assert scored["m-001"] - similar["m-001"] == pytest.approx(0.1 * math.log(8) ** 0.5, abs=2e-6)
    assert scored["m-003"] - similar["m-003"] == pytest.approx(0.1 * (math.log(8) / 8) ** 0.5, abs=2e-6)
