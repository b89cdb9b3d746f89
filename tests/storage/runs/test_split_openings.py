from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import DamagedRecord
from storage.runs.split_openings import SplitUse, open_test_split, opened_before, openings


def use(digest: str, *tasks: str, seeds: tuple[int, ...] = (0, 1), artifact: str = "") -> SplitUse:
    made = (artifact or f"of {tasks}",)
    return SplitUse(comparison="lake", settings_digest=digest, seeds=seeds, test_tasks=made, tasks=tasks)


def test_an_opening_is_recorded_once_and_stays(tmp_path: Path) -> None:
    store = str(tmp_path)
    assert openings(store) == []
    for each in (use("a", "1", "2"), use("a", "1", "2"), use("b", "2", "3"), use("a", "1")):
        open_test_split(store, each)
    found = openings(store)
    assert [opening.settings_digest for opening in found] == ["a", "b"]
    assert found[0].code_version


def test_who_opened_a_task_before_is_known_and_a_comparison_is_not_before_itself(tmp_path: Path) -> None:
    store = str(tmp_path)
    for each in (use("a", "1", "2"), use("b", "2", "3"), use("b", "3", "4"), use("a", "1", "9")):
        open_test_split(store, each)

    def before(each: SplitUse) -> list[str]:
        return [opening.settings_digest for opening in opened_before(openings(store), each)]

    assert before(use("a", "1", "2")) == []
    assert before(use("b", "2", "3")) == ["a"]
    # A third comparison on any of the tasks comes after both; on other tasks it is the first.
    assert before(use("c", "2")) == ["a", "b"]
    assert before(use("c", "4", "5")) == ["b"]
    assert before(use("c", "5")) == []


def test_a_turned_task_and_changed_code_are_known(tmp_path: Path) -> None:
    store = str(tmp_path)
    first = use("a", "1", "2").model_copy(update={"shapes": ("s", "t"), "code_digest": "older"})
    turned = use("b", "7", "8").model_copy(update={"shapes": ("u", "t"), "code_digest": "older"})
    edited = first.model_copy(update={"code_digest": "newer"})
    for each in (first, turned, edited, edited):
        open_test_split(store, each)
    found = openings(store)
    assert [(each.settings_digest, each.code_digest) for each in found] == [
        ("a", "older"),
        ("b", "older"),
        ("a", "newer"),
    ]
    assert turned.seen_in([first]) == {"8"}
    assert opened_before(found, turned) == [found[0]]
    assert opened_before(found, first) == []
    assert opened_before(found, edited) == [found[0]]


def test_an_artifact_with_the_tasks_is_enough_to_know_an_opening(tmp_path: Path) -> None:
    open_test_split(str(tmp_path), use("a", "a digest of another kind", artifact="t"))
    (before,) = opened_before(openings(str(tmp_path)), use("b", "1", artifact="t"))
    assert before.settings_digest == "a"


def test_a_comparison_with_other_seeds_comes_after_itself(tmp_path: Path) -> None:
    store, few, many = str(tmp_path), use("a", "1"), use("a", "1", seeds=(0, 1, 2))
    for each in (few, use("b", "1"), many, few):
        open_test_split(store, each)
    found = openings(store)
    assert [(opening.settings_digest, opening.seeds) for opening in found] == [
        ("a", (0, 1)),
        ("b", (0, 1)),
        ("a", (0, 1, 2)),
    ]
    assert opened_before(found, few) == []
    # What others opened after the first of its own openings is not before it.
    assert opened_before(found, many) == [found[0]]
    assert opened_before(found, use("a", "1", seeds=(2, 1, 0))) == [found[0]]


def test_a_comparison_with_another_baseline_comes_after_itself(tmp_path: Path) -> None:
    store, first = str(tmp_path), use("a", "1")
    second = first.model_copy(update={"baseline": "rlvr"})
    third = first.model_copy(update={"baseline": "erl"})
    for each in (second, third, third):
        open_test_split(store, each)
    found = openings(store)
    assert [opening.baseline for opening in found] == ["rlvr", "erl"]
    assert opened_before(found, third) == [found[0]]
    assert opened_before(found, second) == []


def test_an_opening_that_was_changed_or_removed_is_found(tmp_path: Path) -> None:
    store = str(tmp_path)
    for name in "abc":
        open_test_split(store, use(name, "1"))
    first, second, _ = sorted((tmp_path / "test_splits").iterdir())
    whole = second.read_bytes()
    second.write_bytes(whole.replace(b'"lake"', b'"pond"'))
    with pytest.raises(DamagedRecord, match="was changed after it was written"):
        openings(store)
    second.unlink()
    with pytest.raises(DamagedRecord, match=r"00000002\.json does not follow|00000002\.json is missing"):
        openings(store)
    second.write_bytes(whole)
    first.write_bytes(whole)
    with pytest.raises(DamagedRecord, match=r"00000001\.json does not follow the one before it"):
        openings(store)
