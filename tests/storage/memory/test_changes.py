"""Changes from version to version: equal texts are one entry, evidence gives credit, a full memory evicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.chain import held_entries, read_chain, remaining, states
from storage.memory.changes import MemoryChange, MemoryLimits, near_duplicates, plan_change, write_change
from storage.memory.credit import Evidence, growth
from storage.memory.entries import Embedder, MemoryEntry, entries_digest
from storage.memory.operations import Operation
from storage.memory.versions import EMPTY_MEMORY
from storage.memory.view import MemoryView, ReflectionMemory

Entry = Callable[..., MemoryEntry]


class Memory:
    """A memory whose versions are changed one after the other."""

    def __init__(self, store: ArtifactStore, embedder: Embedder) -> None:
        self.store = store
        self.versions = [EMPTY_MEMORY]
        self._embedder = embedder
        self._memory = ReflectionMemory(store.uri, "run", store, embedder)

    def change(
        self,
        written: Sequence[MemoryEntry] = (),
        evidence: Sequence[Evidence] = (),
        limits: MemoryLimits | None = None,
        replaced: Mapping[str, str] | None = None,
    ) -> MemoryChange:
        iteration, parent = len(self.versions), self.versions[-1]
        inputs = {"memory": parent} if parent != EMPTY_MEMORY else {}
        recipe = Recipe("index_memory", 4, {"iteration": iteration}, inputs, 0, kind="memory")
        version = recipe.artifact_id
        marked = [
            replace(each, memory_version=version, iteration=iteration, last_iteration=iteration)
            for each in written
        ]
        change = plan_change(
            self._memory.at(parent),
            marked,
            evidence,
            limits or MemoryLimits(),
            self._embedder,
            iteration=iteration,
            version=version,
            replaced=replaced,
        )
        with self.store.create(recipe, run="run", iteration=iteration) as staging:
            write_change(staging.path, change, self._embedder)
            staging.commit(counters=change.counters, memory_version=version)
        self.versions.append(version)
        return change

    def view(self) -> MemoryView:
        return self._memory.at(self.versions[-1])

    def held(self, number: int = -1) -> dict[str, MemoryEntry]:
        view = self._memory.at(self.versions[number])
        return view.get(view.entries()["entry_id"].to_list())


@pytest.fixture
def memory(store: ArtifactStore, embedder: Embedder) -> Memory:
    return Memory(store, embedder)


def test_equal_texts_of_a_task_type_are_one_entry(memory: Memory, entry: Entry) -> None:
    """Of four reflections two have the same text for one task type, in different situations."""
    change = memory.change(
        [
            entry(1, "a lake", text="go right"),
            entry(2, "a pond", text="go right", parent_entry_ids=("m-008", "m-001")),
            entry(3, text="go left"),
            entry(4, text="go right", task_type="lake-8x8"),
        ]
    )
    assert change.counters == {"entries_added": 3, "entries": 3, "copies": 1, "entries_returned": 1}
    held = memory.held()
    assert {name: each.support for name, each in held.items()} == {"m-001": 2, "m-003": 1, "m-004": 1}
    assert (held["m-001"].key_text, held["m-001"].source_trajectory_id) == ("a lake", "t-001")
    assert held["m-001"].parent_entry_ids == ("m-008",)  # and not itself


def test_a_text_that_is_there_returns_its_entry_with_more_support(memory: Memory, entry: Entry) -> None:
    memory.change([entry(1, text="go right", parent_entry_ids=("m-000",))])
    change = memory.change(
        [
            entry(2, text="go right", parent_entry_ids=("m-001",)),
            entry(3, text="go right", parent_entry_ids=("m-005", "m-000")),
        ]
    )
    assert change.entries == ()
    assert change.operations == (
        Operation(
            "return",
            "m-001",
            iteration=2,
            memory_version=memory.versions[2],
            support=2,
            trajectory_ids=("t-002", "t-003"),
            parent_entry_ids=("m-001", "m-005", "m-000"),
        ),
    )
    [now], [before] = memory.held().values(), memory.held(1).values()
    assert (now.support, now.iteration, now.last_iteration) == (3, 1, 2)
    assert now.parent_entry_ids == ("m-000", "m-005")
    assert (before.support, before.last_iteration, before.parent_entry_ids) == (1, 1, ("m-000",))


def test_evidence_becomes_credit_shrunk_by_eight(memory: Memory, entry: Entry) -> None:
    """Three observations that add up to 2.2: 2.2 / (3 + 8) = .2. Then one of -0.8: (2.2 - .8) / (4 + 8)."""
    memory.change([entry(1), entry(2)])
    memory.change(evidence=[Evidence("m-001", retrievals=5, credit_sum=2.2, credit_count=3)])
    assert memory.held()["m-001"].credit == pytest.approx(0.2)
    change = memory.change(evidence=[Evidence("m-001", 2, -0.8, 1), Evidence("m-gone", 1, 1.0, 1)])
    assert [(each.operation, each.entry_id) for each in change.operations] == [("update", "m-001")]
    now = memory.held()["m-001"]
    assert now.credit == pytest.approx(1.4 / 12)
    assert (now.credit_count, now.retrievals, now.support) == (4, 7, 1)
    assert memory.held()["m-002"].credit == 0.0


def test_nearly_equal_texts_are_merged_where_asked(memory: Memory, entry: Entry) -> None:
    memory.change([entry(1, "a frozen lake", text="walk around the hole")])
    change = memory.change(
        [
            entry(2, "a lake that is frozen", text="walk around the hole!"),
            entry(3, "a frozen lake", text="start by going down twice"),
            entry(4, "a frozen lake", text="walk around the hole!", task_type="lake-8x8"),
            entry(5, "a box", text="walk around the hole!"),
        ],
        limits=MemoryLimits(merge_similarity=0.85),
    )
    assert sorted(memory.held()) == ["m-001", "m-003", "m-004"]
    assert memory.held()["m-001"].support == 3
    # The copy of the near text, then the near text itself.
    assert [each.trajectory_ids for each in change.operations] == [("t-005",), ("t-002",)]
    assert {each.entry_id for each in change.operations} == {"m-001"}
    assert all(each.similarity is not None and 0.85 <= each.similarity < 1 for each in change.operations)


def test_new_texts_are_merged_among_themselves(memory: Memory, entry: Entry) -> None:
    texts = ["walk around the hole", "walk around the hole!", "walk around the hole."]
    written = [entry(number, text=text) for number, text in zip((3, 1, 2), texts, strict=True)]
    memory.change(written, limits=MemoryLimits(merge_similarity=0.85))
    assert {name: each.support for name, each in memory.held().items()} == {"m-003": 3}


@pytest.mark.parametrize("least", [0.0, 0.85, 1.0])
def test_the_filter_of_near_duplicates_leaves_what_comparing_all_pairs_gives(
    memory: Memory, entry: Entry, embedder: Embedder, least: float
) -> None:
    words = ["walk", "around", "the hole", "walk!", "go down", "twice"]
    texts = [f"{one} {other}" for one in words for other in words]
    entries = [entry(n, text=text, task_type=f"lake-{n % 2}") for n, text in enumerate([*texts, *texts[::3]])]
    vectors = embedder.embed([each.text for each in entries]).astype(np.float64)
    expected: dict[str, tuple[str, float]] = {}
    for n, each in enumerate(entries):
        before = [
            (-round(float(np.dot(vectors[n], vectors[m])), 6), other.text, other.entry_id)
            for m, other in enumerate(entries[:n])
            if other.task_type == each.task_type and other.entry_id not in expected
        ]
        if before and -min(before)[0] >= least:
            expected[each.entry_id] = (min(before)[2], -min(before)[0])
    assert expected
    assert near_duplicates(memory.view(), entries, least, embedder) == expected


def test_a_full_memory_lets_those_go_that_were_written_longest_ago(memory: Memory, entry: Entry) -> None:
    limits = MemoryLimits(max_entries=2, evict="oldest")
    memory.change([entry(1), entry(2)], limits=limits)
    memory.change([entry(9, text="reflection 1")], limits=limits)  # says what m-001 does
    change = memory.change([entry(3)], limits=limits)
    assert sorted(memory.held()) == ["m-001", "m-003"]
    assert change.operations == (
        Operation("remove", "m-002", 3, memory.versions[3], reason="evicted", detail="oldest"),
    )
    assert change.counters == {"entries_added": 1, "entries": 2, "copies": 0, "entries_evicted": 1}
    assert sorted(memory.held(2)) == ["m-001", "m-002"]


def test_a_full_memory_lets_the_lowest_credit_go_as_it_is_after_the_evidence(
    memory: Memory, entry: Entry
) -> None:
    """After the evidence credits are -1/9, 2/10, 0 and 0. Of equals the older is evicted, then the one whose
    text has the smaller digest, whatever the ids are."""
    limits = MemoryLimits(max_entries=2, evict="lowest_credit")
    memory.change([entry(1), entry(2)], limits=limits)
    evidence = [Evidence("m-001", 1, -1.0, 1), Evidence("m-002", 2, 2.0, 2)]
    new = sorted([entry(3), entry(4)], key=lambda each: each.text_key)
    stays, leaves = replace(new[1], entry_id="m-003"), replace(new[0], entry_id="m-004")
    change = memory.change([leaves, stays], evidence, limits)
    assert sorted(memory.held()) == ["m-002", "m-003"]
    removed = [each.entry_id for each in change.operations if each.operation == "remove"]
    assert removed == ["m-001", "m-004"]  # a new one too


def test_growth_tells_what_each_version_changed(memory: Memory, entry: Entry) -> None:
    memory.change([entry(1), entry(2, text="reflection 1"), entry(3)])
    limits = MemoryLimits(max_entries=2)
    memory.change([entry(4), entry(5, text="reflection 1")], [Evidence("m-003", 1, 0.0, 0)], limits)
    rows = growth(read_chain(memory.store, memory.versions[-1])[1])
    names = ("added", "copies", "returned", "updated", "evicted", "forgotten", "entries")
    assert [[row[name] for name in names] for row in rows] == [
        [2, 1, 1, 0, 0, 0, 2],
        [1, 1, 1, 1, 1, 0, 2],
    ]
    assert sorted(memory.held()) == ["m-001", "m-004"]


def test_the_chain_says_the_same_as_the_table(memory: Memory, entry: Entry, embedder: Embedder) -> None:
    """Operations on new and on earlier entries; read from Parquet, from the table that grew with the
    versions, and from a table that is rebuilt."""
    limits = MemoryLimits(max_entries=3)
    memory.change([entry(1), entry(2), entry(3, text="reflection 2")])
    memory.change([entry(4), entry(5, text="reflection 1")], [Evidence("m-002", 3, 0.7, 2)], limits)
    memory.change([entry(6)], [Evidence("m-001", 1, -0.4, 1)], limits)
    deltas = read_chain(memory.store, memory.versions[-1])[1]
    anew = ReflectionMemory(memory.store.uri, "other", memory.store, embedder).at(memory.versions[-1])
    assert anew.digest() == entries_digest(remaining(deltas))
    assert anew.get(list(memory.held())) == memory.held()
    in_parquet = held_entries(deltas).collect()
    assert in_parquet.sort("entry_id").equals(anew.entries())
    assert states(deltas)["m-001"] == memory.held()["m-001"]


def test_equal_changes_have_equal_bytes(
    memory: Memory, entry: Entry, embedder: Embedder, tmp_path: Path
) -> None:
    change = memory.change([entry(1), entry(2, text="reflection 1")])
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert write_change(tmp_path / name, change, embedder) == {
            "entries.parquet": 1,
            "operations.parquet": 1,
        }
    for name in ("entries.parquet", "operations.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_kill_between_taking_rows_out_and_putting_them_in_again_loses_none(
    memory: Memory, entry: Entry, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill left a table from which rows had been removed, without the tag of the version."""
    import lancedb

    memory.change([entry(1), entry(2)])
    before = memory.held()
    table = lancedb.connect(f"{memory.store.uri}/memory/run").open_table("reflections")
    table.delete("entry_id = 'm-001'")
    memory.change([entry(3, text="reflection 1")])
    assert {name: each.support for name, each in memory.held().items()} == {"m-001": 2, "m-002": 1}
    assert memory.held(1) == before


def test_an_entry_that_is_replaced_leaves_unless_its_text_is_written_again(
    memory: Memory, entry: Entry
) -> None:
    memory.change([entry(1, text="go right"), entry(2, text="go left"), entry(3, text="wait")])
    update = entry(4, text="go right at once", operation="update", parent_entry_ids=("m-001",))
    again = entry(5, text="go left")
    replaced = {"m-001": "by an update", "m-002": "by an update", "m-999": "by an update"}
    change = memory.change([update, again], replaced=replaced)
    removals = [each for each in change.operations if each.operation == "remove"]
    assert [(each.entry_id, each.reason, each.detail) for each in removals] == [
        ("m-001", "replaced", "by an update")
    ]
    assert sorted(memory.held()) == ["m-002", "m-003", "m-004"]
    assert change.counters["entries"] == 3
    # A replaced entry makes room, and is not evicted again.
    full = memory.change([entry(6, text="run")], limits=MemoryLimits(max_entries=3), replaced={"m-003": "so"})
    assert "entries_evicted" not in full.counters
    assert sorted(memory.held()) == ["m-002", "m-004", "m-006"]
