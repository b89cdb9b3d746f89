"""Merging the memory chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.stages.extractor.memory import Scope, merged_entries, replaced_in
from storage.memory.entries import MemoryEntry
from tests.storage.conftest import an_entry


def entries(*texts: str) -> list[MemoryEntry]:
    return [
        an_entry(number, entry_id=f"m-{number}", text=text, support=3) for number, text in enumerate(texts)
    ]


def merged(scope: Scope, *answers: Sequence[str] | None) -> tuple[list[MemoryEntry], list[str]]:
    """The new entries of a merge with these answers, and the ids of removed entries."""
    for number, texts in enumerate(answers):
        assert scope.shown
        scope.answer(texts, f"q-{number}")
    assert not scope.shown
    return merged_entries(scope, "text", 5, "version-2", "extractor-2"), sorted(replaced_in(scope))


def test_what_the_extractor_leaves_out_is_replaced_by_what_it_writes() -> None:
    written, gone = merged(
        Scope(entries("go right", "go right first", "wait"), 5), ["go right at once", "wait"]
    )
    (new,) = written
    assert (new.text, new.entry_id, new.operation) == ("go right at once", "m-q-0-0", "update")
    assert (new.parent_entry_ids, new.source_trajectory_id) == (("m-0", "m-1"), "q-0")
    assert (new.support, new.iteration, new.policy_version) == (1, 5, "extractor-2")
    assert gone == ["m-0", "m-1"]  # `wait` is kept as it is


def test_what_is_only_discarded_leaves_nothing_behind() -> None:
    assert merged(Scope(entries("go right", "nonsense"), 5), ["go right"]) == ([], ["m-1"])


def test_what_was_written_is_read_again_with_the_next_chunk() -> None:
    scope = Scope(entries("a", "b", "c"), 2)
    assert [item.text for item in scope.shown] == ["a", "b"]
    scope.answer(["ab"], "q-0")
    assert [item.text for item in scope.shown] == ["c", "ab"]
    scope.answer(["abc"], "q-1")
    (new,) = merged_entries(scope, "text", 5, "version-2", "extractor-2")
    assert (new.text, new.parent_entry_ids) == ("abc", ("m-2", "m-0", "m-1"))
    assert sorted(replaced_in(scope)) == ["m-0", "m-1", "m-2"]


def test_an_ill_formed_answer_changes_nothing() -> None:
    assert merged(Scope(entries("a", "b", "c", "d"), 2), None, []) == ([], [])
    written, gone = merged(Scope(entries("a", "b", "c", "d"), 2), ["ab"], None)
    assert ([each.text for each in written], gone) == (["ab"], ["m-0", "m-1"])
