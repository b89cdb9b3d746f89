from __future__ import annotations

import random

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.world import Symbols, World
from erl_pipeline.environments.hidden_words.directions import DIRECTIONS
from erl_pipeline.environments.hidden_words.hearsay import Slots, corrected, hearsay, slots_text

TRUTH: Slots = {"up": "a", "right": "b", "down": "c", "left": "d"}
WORLD = World({word: direction for direction, word in TRUTH.items()}, Symbols("@", "#", "$", "&"))


def told(count: int, **settings: float) -> list[Slots]:
    stream = random.Random(0)
    config = ColdStartConfig.model_validate({"swapped_notes": 0.0, "reshuffled_notes": 0.0, **settings})
    return [hearsay(stream, WORLD, config) for _ in range(count)]


def wrong(slots: Slots) -> int:
    return sum(word != TRUTH[direction] for direction, word in slots.items())


def test_slots_name_the_word_of_each_direction() -> None:
    assert slots_text({"right": "c", "left": "a"}) == "? c ? a"


def test_one_to_four_slots_are_told_in_the_order_of_the_directions() -> None:
    slots = told(200)
    assert {len(each) for each in slots} == {1, 2, 3, 4}
    assert all(list(each) == [d for d in DIRECTIONS if d in each] for each in slots)
    assert {wrong(each) for each in slots} == {0}


def test_a_swap_makes_two_words_wrong() -> None:
    whole = [each for each in told(200, swapped_notes=1.0) if len(each) == 4]
    assert {wrong(each) for each in whole} == {2}
    assert len({slots_text(each) for each in whole}) == 6  # pairs of four directions


def test_any_order_may_be_told() -> None:
    whole = [each for each in told(2000, reshuffled_notes=1.0) if len(each) == 4]
    assert len({slots_text(each) for each in whole}) == 24


def test_a_third_of_the_slots_is_wrong_by_default() -> None:
    """A swap makes 2 of 4 slots wrong, a random order 3 of 4 on average: 0.5 * 0.5 + 0.1 * 0.75 = 0.325."""
    stream = random.Random(0)
    slots = [hearsay(stream, WORLD, ColdStartConfig()) for _ in range(4000)]
    share = sum(map(wrong, slots)) / sum(map(len, slots))
    assert share == pytest.approx(0.325, abs=0.02)


@pytest.mark.parametrize(
    ("memory", "seen", "expected"),
    [
        ({}, {"up": "a"}, "a ? ? ?"),
        ({"down": "c"}, {"up": "a"}, "a ? c ?"),
        ({"up": "b"}, {"up": "a"}, "a ? ? ?"),
        # `a` was noted for right and seen to move up: the word for right is unknown again.
        ({"up": "b", "right": "a", "left": "d"}, {"up": "a"}, "a ? ? d"),
        ({"up": "b", "right": "a"}, {"up": "a", "right": "b"}, "a b ? ?"),
    ],
)
def test_what_was_seen_overrides_what_was_remembered(memory: Slots, seen: Slots, expected: str) -> None:
    assert slots_text(corrected(memory, seen)) == expected
