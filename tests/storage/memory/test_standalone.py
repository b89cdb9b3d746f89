"""A reflection memory without a run: the whole of its interface, on plain lessons."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory.changes import MemoryLimits
from storage.memory.standalone import Lesson, StandaloneMemory
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.embedders import WordEmbedder

OVEN = Lesson("This oven runs hot: bake at 180, not 200.", "the bread came out black")
FLOUR = Lesson("Weigh the flour.", "the dough was too wet to knead")
BRAKES = Lesson("Oil the chain, not the brakes.", "the bicycle did not stop", task_type="bicycle")


def test_lessons_are_added_found_and_forgotten(tmp_path: Path) -> None:
    memory = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder())
    assert memory.search("anything") == []
    first = memory.add([OVEN, FLOUR])
    second = memory.add([BRAKES, OVEN])
    assert memory.search("why is my bread black?", top_k=1)[0].entry.text == OVEN.text
    assert [hit.entry.text for hit in memory.search("the bread", task_type="bicycle")] == [BRAKES.text]
    assert [hit.entry.text for hit in memory.search("weighing flour", mode="text")] == [FLOUR.text]

    third = memory.forget(OVEN.entry_id, "we have a new oven")
    assert OVEN.text not in [hit.entry.text for hit in memory.search("why is my bread black?")]
    assert [each.artifact_id for each in memory.versions()] == [first, second, third]
    assert [memory.at(version).count() for version in (first, second, third)] == [2, 3, 2]
    assert memory.at(second).search(["why is my bread black?"], 1)[0][0].entry.entry_id == OVEN.entry_id
    assert memory.add([OVEN, FLOUR]) == third  # what was forgotten stays forgotten
    with pytest.raises(InputError, match=r"not in the memory any more: forgotten \(we have a new oven\)"):
        memory.forget(OVEN.entry_id, "again")


def test_a_lesson_without_a_text_is_refused_and_half_a_character_replaced(tmp_path: Path) -> None:
    memory = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder())
    with pytest.raises(InputError, match="'the bread' has no text"):
        memory.add([OVEN, Lesson("", "the bread")])
    assert memory.versions() == []

    memory.add([Lesson("Weigh it \ud83d", "the dough \ud83d")])
    assert memory.search("the dough \ud83d")[0].entry.text == "Weigh it \ufffd"


def test_another_process_finds_the_same_memory(tmp_path: Path) -> None:
    version = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder()).add([OVEN, FLOUR])
    again = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder())
    assert again.add([FLOUR]) == version
    assert again.search("black bread", top_k=1)[0].entry.text == OVEN.text
    elsewhere = StandaloneMemory(str(tmp_path / "other"), "kitchen", WordEmbedder())
    assert elsewhere.add([OVEN, FLOUR]) == version
    assert elsewhere.at(version).digest() == again.at(version).digest()


def test_it_stays_within_its_limits(tmp_path: Path) -> None:
    memory = StandaloneMemory(
        str(tmp_path), "kitchen", WordEmbedder(), MemoryLimits(merge_similarity=0.9, max_entries=2)
    )
    memory.add([OVEN, FLOUR])
    same = Lesson("This oven runs hot: bake at 180, not at 200!", "the bread came out black.")
    memory.add([same, BRAKES])
    # The oven's lesson was added again, so the flour's is the oldest.
    assert {hit.entry.text: hit.entry.support for hit in memory.search("bread")} == {
        OVEN.text: 2,
        BRAKES.text: 1,
    }


def test_a_lesson_that_was_merged_into_another_counts_once_and_does_not_bring_it_back(tmp_path: Path) -> None:
    limits = MemoryLimits(merge_similarity=0.9)
    memory = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder(), limits)
    same = Lesson("This oven runs hot: bake at 180, not at 200!", "the bread came out black.")
    version = memory.add([OVEN, same])
    for _ in range(2):
        assert memory.add([OVEN, same]) == version
    [hit] = memory.search("bread")
    assert (hit.entry.text, hit.entry.support) == (OVEN.text, 2)

    forgotten = memory.forget(OVEN.entry_id, "we have a new oven")
    # Whoever opens it later, with whatever limits.
    for again in (memory, StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder())):
        assert again.add([OVEN, same]) == forgotten
        assert again.search("bread") == []


def test_verification_covers_it(tmp_path: Path) -> None:
    memory = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder())
    memory.add([OVEN, FLOUR])
    memory.forget(FLOUR.entry_id, "we only buy bread")
    report = verify_run(ArtifactStore(str(tmp_path)), RunStore(str(tmp_path)).open("kitchen"))
    assert (report.problems, report.memory_entries) == ([], 2)


def test_lessons_are_numbered_by_the_call_that_brought_them(tmp_path: Path) -> None:
    memory = StandaloneMemory(str(tmp_path), "kitchen", WordEmbedder())
    memory.add([OVEN])
    memory.forget(OVEN.entry_id, "we have a new oven")
    version = memory.add([FLOUR])
    assert memory.at(version).get([FLOUR.entry_id])[FLOUR.entry_id].iteration == 2


def test_a_name_that_is_a_training_run_is_refused(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).create("lake", {"iterations": 3})
    with pytest.raises(InputError, match=r"lake in store .* is a training run"):
        StandaloneMemory(str(tmp_path), "lake", WordEmbedder())
