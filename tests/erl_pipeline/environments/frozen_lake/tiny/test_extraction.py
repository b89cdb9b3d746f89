"""Extraction in the compact format, and its demonstrations."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.experience_format import EpisodeRecord, ExperienceOperation
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tiny.extraction import CompactExtraction
from erl_pipeline.environments.frozen_lake.tiny.extractor import extraction_answer, merge_answer
from erl_pipeline.environments.hidden_words.directions import Direction
from erl_pipeline.environments.messages import Message, user_message

PROMPTS = CompactExtraction(("a", "b", "c", "d"), max_steps=3)
TURNS: list[Message] = [
    {"role": "assistant", "content": "right a"},
    user_message("right c1"),
    {"role": "assistant", "content": "down"},
    user_message("bad c1"),
    {"role": "assistant", "content": "right a"},
]


def record(*lessons: str) -> EpisodeRecord:
    opening = [user_message(f"@ # & notes {lessons[-1] if lessons else '? ? ? ?'}")]
    return EpisodeRecord(opening, TURNS, lessons, "goal", 1.0)


def test_an_episode_is_shown_without_the_notes_and_with_the_lesson_apart() -> None:
    (bare,) = PROMPTS.extraction(record())
    trace = "trace right a right c1 . . bad c1 right a . . goal"
    assert bare["content"] == f"@ # & {trace} memory ? ? ? ? extract"
    (guided,) = PROMPTS.extraction(record("b a ? ?"))
    assert guided["content"] == f"@ # & {trace} memory b a ? ? extract"
    assert PROMPTS.situation(record("b a ? ?")) == "@ # & notes ? ? ? ?"


@pytest.mark.parametrize(
    ("answer", "lessons", "operations"),
    [
        ("return", 0, [ExperienceOperation("return")]),
        ("add ? a ? ?", 1, [ExperienceOperation("add", "? a ? ?")]),
        ("update ? a ? ?", 1, [ExperienceOperation("update", "? a ? ?", (0,))]),
        ("update ? a ? ?", 0, None),
        ("add ? ? ? ?", 0, None),
        ("add ? a ?", 0, None),
        ("add ? a ? up", 0, None),
        ("return ? a ? ?", 0, None),
        ("", 0, None),
    ],
)
def test_an_answer_is_one_operation(
    answer: str, lessons: int, operations: list[ExperienceOperation] | None
) -> None:
    assert PROMPTS.read_extraction(answer, lessons) == operations


def test_texts_are_merged_four_slots_at_a_time() -> None:
    (asked,) = PROMPTS.merging(["? a ? ?", "b ? ? ?"])
    assert asked["content"] == "merge ? a ? ? b ? ? ?"
    assert PROMPTS.read_merging("b a ? ? c ? ? ?") == ["b a ? ?", "c ? ? ?"]
    assert PROMPTS.read_merging("return") == []
    for ill_formed in ("", "b a ?", "? ? ? ?", "b a ? ? return"):
        assert PROMPTS.read_merging(ill_formed) is None


Slots = Mapping[Direction, str]


@pytest.mark.parametrize(
    ("lesson", "shown", "answer"),
    [
        ({}, {}, "return"),
        ({}, {"right": "a"}, "add ? a ? ?"),
        ({"right": "a"}, {"right": "a"}, "return"),
        ({"up": "b"}, {"right": "a"}, "update b a ? ?"),
        ({"up": "a", "left": "c"}, {"right": "a"}, "update ? a ? c"),  # the lesson was wrong about `a`
    ],
)
def test_what_was_seen_is_believed_more_than_the_lesson(lesson: Slots, shown: Slots, answer: str) -> None:
    assert extraction_answer(lesson, shown) == answer


def test_lessons_that_agree_become_one() -> None:
    assert merge_answer([{"up": "a"}, {"right": "b"}]) == "a b ? ?"
    assert merge_answer([{"up": "a"}, {"up": "b"}]) == "return"
    assert merge_answer([{"up": "a"}, {"right": "a"}, {"up": "a", "down": "c"}]) == "a ? c ? ? a ? ?"


def test_demonstrations_are_answers_in_the_words_of_the_extractor() -> None:
    parts = ENVIRONMENT.tiny.extractor(FrozenLakeConfig())
    assert parts is not None
    shown = parts.demonstrations(random.Random(0), ColdStartConfig())
    prompts = CompactExtraction(FrozenLakeConfig().action_words, FrozenLakeConfig().max_steps)
    answers = set()
    for asked, answer in (demonstration for _ in range(100) for demonstration in next(shown)):
        words = [*asked["content"].split(), *answer["content"].split()]
        assert set(words) <= set(parts.words)
        assert len(words) + 4 <= parts.context_length
        if asked["content"].startswith("merge"):
            assert prompts.read_merging(answer["content"]) is not None
        else:
            told = " ".join(asked["content"].split()[-5:-1])
            assert prompts.read_extraction(answer["content"], int(told != "? ? ? ?")) is not None
            answers.add(answer["content"].split()[0])
    assert answers == {"add", "update", "return"}


def test_plans_and_prose_have_no_form_for_a_tiny_extractor() -> None:
    for settings in (FrozenLakeConfig(action_mode="plan"), FrozenLakeConfig(format="prose")):
        assert ENVIRONMENT.tiny.extractor(settings) is None
        assert ENVIRONMENT.tiny.experience(settings) is None
