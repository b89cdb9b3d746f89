"""Near-duplicates among search results."""

from __future__ import annotations

from collections.abc import Sequence

from storage.memory.deduplicate import fold, folded_search
from storage.memory.entries import MemoryEntry
from storage.memory.view import MemoryHit

LOOK = "look at the board first and then go around the hole to the right of it"
LOOK_LEFT = LOOK.replace("right", "left")  # 15 of 16 words
SLOWLY = "go slowly"


def hit(entry_id: str, text: str, score: float) -> MemoryHit:
    entry = MemoryEntry(
        entry_id=entry_id,
        kind="reflection",
        text=text,
        task_type="maze",
        task_text="",
        feedback="",
        key_text="",
        source_trajectory_id=None,
        iteration=1,
        last_iteration=1,
        policy_version="",
        parent_entry_ids=(),
        memory_version="v",
    )
    return MemoryHit(entry, score)


def ids(hits: Sequence[MemoryHit]) -> list[str]:
    return [each.entry.entry_id for each in hits]


HITS = [hit("a", LOOK, 0.9), hit("b", LOOK_LEFT, 0.8), hit("c", SLOWLY, 0.7), hit("d", LOOK.upper(), 0.6)]


def test_entries_that_say_almost_the_same_stand_behind_the_best_of_them() -> None:
    folded = fold(HITS)
    assert ids([each.hit for each in folded]) == ["a", "c"]
    assert [ids(each.alike) for each in folded] == [["b", "d"], []]


def test_short_texts_that_differ_in_one_of_four_words_are_two() -> None:
    assert len(fold([hit("a", "d ? a ?", 0.2), hit("b", "d ? ? ?", 0.1)])) == 2


def test_a_search_goes_on_until_there_are_enough_that_differ() -> None:
    many = [hit(f"copy-{number}", LOOK, 0.9) for number in range(10)] + [HITS[2]]
    asked = []

    def search(count: int) -> Sequence[MemoryHit]:
        asked.append(count)
        return many[:count]

    folded = folded_search(search, 2)
    assert ids([each.hit for each in folded]) == ["copy-0", "c"]
    assert len(folded[0].alike) == 9
    assert asked == [8, 32]
