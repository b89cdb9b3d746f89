from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.game import FrozenLakeSymbols
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS
from erl_pipeline.environments.grid_games.boards import DIRECTIONS
from erl_pipeline.environments.grid_games.hidden_words import (
    CompactPrompts,
    Slots,
    World,
    corrected,
    hidden_permutation,
    noisy_slots,
    slots_text,
)
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptReport

TRUTH: Slots = {"up": "a", "right": "b", "down": "c", "left": "d"}
WORLD = World({word: direction for direction, word in TRUTH.items()}, FrozenLakeSymbols("@", "#", "$", "&"))


def told(count: int, **settings: float) -> list[Slots]:
    stream = random.Random(0)
    config = ColdStartConfig.model_validate({"swapped_notes": 0.0, "reshuffled_notes": 0.0, **settings})
    return [noisy_slots(stream, WORLD, config) for _ in range(count)]


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
    slots = [noisy_slots(stream, WORLD, ColdStartConfig()) for _ in range(4000)]
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


PROMPTS = CompactPrompts(("a", "b", "c", "d"))
REPORT = AttemptReport(observation="@ &", trace="up a bump c0", feedback="lost", reward=0.0)


def content(messages: Sequence[Message]) -> str:
    (message,) = messages
    assert message["role"] == "user"
    return message["content"]


def test_attempts_differ_in_their_slots_alone() -> None:
    assert content(PROMPTS.attempt("", "@ &", [])) == "@ & notes ? ? ? ?"
    assert content(PROMPTS.attempt("", "@ &", ["? b ? d"])) == "@ & notes ? b ? d"


def test_the_latest_notes_are_preferred_and_older_ones_fill_the_gaps() -> None:
    assert content(PROMPTS.attempt("", "@ &", ["a c ? d", "? b ? ?"])) == "@ & notes a b ? d"


def test_a_retry_is_told_of_the_failed_attempt() -> None:
    assert content(PROMPTS.retry("", REPORT, [])) == "@ & notes ? ? ? ? trace up a bump c0 lost"
    assert content(PROMPTS.retry("", REPORT, ["? b ? ?"])) == "@ & notes ? b ? ? trace up a bump c0 lost"


def test_a_reflection_prompt_has_every_field_in_its_place() -> None:
    expected = "@ & trace up a bump c0 lost memory {} reflect"
    assert content(PROMPTS.reflection("", REPORT, [])) == expected.format("? ? ? ?")
    assert content(PROMPTS.reflection("", REPORT, ["? b ? ?", "a c ? ?"])) == expected.format("a b ? ?")


@pytest.mark.parametrize("text", ["", "a b c", "a b c d a", "a b c x", "a b c0 d", "up a ? ?"])
def test_ill_formed_reflections_are_refused(text: str) -> None:
    assert PROMPTS.read_reflection(text) is None


def test_four_slots_are_a_reflection() -> None:
    assert PROMPTS.read_reflection(" a  ? ? d ") == "a ? ? d"


def test_named_actions_move_where_they_say() -> None:
    world = TASKS.world(FrozenLakeConfig(format="prose", actions="named"), 0, "task", 0)
    assert world.actions == {"up": "up", "right": "right", "down": "down", "left": "left"}


def test_a_hidden_world_is_one_for_all_tasks_of_a_run() -> None:
    config = FrozenLakeConfig()
    worlds = [TASKS.world(config, 0, f"task-{number}", 0).actions for number in range(5)]
    assert worlds == [{"a": "up", "b": "left", "c": "down", "d": "right"}] * 5


def test_neighbouring_seeds_give_different_worlds() -> None:
    assert len({hidden_permutation(seed) for seed in range(100, 124)}) == 24


def test_world_seed_wins_over_the_seed_of_the_run() -> None:
    fixed = FrozenLakeConfig(world_seed=7)
    assert TASKS.world(fixed, 0, "task", 0) == TASKS.world(fixed, 1, "task", 0)
    assert TASKS.world(fixed, 0, "task", 0) == TASKS.world(FrozenLakeConfig(), 7, "task", 0)


def test_per_task_permutations_differ_between_tasks_and_repeat_for_one() -> None:
    config = FrozenLakeConfig(actions="per_task", permute_symbols=True)
    worlds = [TASKS.world(config, 0, f"task-{number}", 0) for number in range(20)]
    assert len({tuple(world.actions.items()) for world in worlds}) > 10
    assert len({world.symbols for world in worlds}) > 10
    assert TASKS.world(config, 0, "task-3", 0) == worlds[3]


def test_words_invert_the_actions() -> None:
    world = TASKS.world(FrozenLakeConfig(), 0, "task", 0)
    assert world.words == {"up": "a", "right": "d", "down": "c", "left": "b"}
