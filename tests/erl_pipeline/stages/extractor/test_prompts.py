"""Prompts for language models: what the extractor sees, and how its answers are parsed."""

from __future__ import annotations

import pytest

from erl_pipeline.config.experience import ExperienceTemplates
from erl_pipeline.environments.messages import (
    Message,
    read_turn,
    tool_message,
    turn_message,
    user_message,
)
from erl_pipeline.environments.prompt_format import EpisodeRecord, ExperienceOperation
from erl_pipeline.stages.extractor.prompts import ExperiencePrompts
from storage.texts import StorableTexts

PROMPTS = ExperiencePrompts(ExperienceTemplates(), max_operations=3)
LESSONS = ["Doors stick.", "Pull first."]
TURNS: list[Message] = [
    {"role": "assistant", "content": "open"},
    user_message("It is shut."),
    {"role": "assistant", "content": "pull"},
]


def record(lessons: list[str]) -> EpisodeRecord:
    opening = PROMPTS.attempt("Get out.", "A door.", lessons)
    return EpisodeRecord(opening, TURNS, lessons, "It failed.", 0.0)


def test_lessons_stand_after_the_instructions() -> None:
    system, user = PROMPTS.attempt("Get out.", "A door.", LESSONS)
    assert system["content"].startswith("Get out.\n\nLessons from earlier episodes")
    assert system["content"].endswith("\n- Doors stick.\n- Pull first.")
    assert user["content"] == "A door."
    assert PROMPTS.attempt("Get out.", "A door.", [])[0]["content"] == "Get out."


def test_the_extractor_reads_the_episode_without_the_lessons_and_sees_them_apart() -> None:
    told = PROMPTS.extraction(record(LESSONS))[-1]["content"]
    episode, _, listed = told.partition("\n\nThe lessons that were given:")
    assert "Doors stick." not in episode
    assert listed == "\n1. Doors stick.\n2. Pull first."
    assert "[assistant] open\n[user] It is shut.\n[assistant] pull" in episode
    bare = PROMPTS.extraction(record([]))[-1]["content"]
    assert bare == episode
    assert PROMPTS.situation(record(LESSONS)) == "A door."


def test_the_extractor_reads_what_tools_were_asked() -> None:
    said = '<tool_call>{"name": "search", "arguments": {"query": "mayor of Bragg"}}</tool_call>'
    turn = read_turn(said, 0, StorableTexts())
    asked = turn_message(turn)
    assert asked["content"] == ""
    turns: list[Message] = [asked, tool_message(turn.tool_calls[0], "A town."), TURNS[0]]
    shown = EpisodeRecord(PROMPTS.attempt("Find it.", "Who?", []), turns, [], "It failed.", 0.0)
    told = PROMPTS.extraction(shown)[-1]["content"]
    assert '\n[assistant] search({"query": "mayor of Bragg"})\n[tool] A town.\n[assistant] open\n' in told


def test_lessons_that_cannot_be_cut_off_are_an_error() -> None:
    changed = EpisodeRecord(PROMPTS.attempt("Get out.", "A door.", ["Other."]), [], LESSONS, "", 0.0)
    with pytest.raises(ValueError, match="does not end with its lessons"):
        PROMPTS.extraction(changed)


@pytest.mark.parametrize(
    ("answer", "operations"),
    [
        ('I think. <answer>[{"operation": "return"}]</answer>', [ExperienceOperation("return")]),
        ('<answer>{"operation": "add", "text": " Push. "}</answer>', [ExperienceOperation("add", "Push.")]),
        (
            '<answer>[{"operation": "update", "lessons": [2, 1], "text": "Pull, then push."}]</answer>',
            [ExperienceOperation("update", "Pull, then push.", (0, 1))],
        ),
        (
            '<answer>[{"operation": "update", "text": "Pull."}]</answer>',
            [ExperienceOperation("update", "Pull.", (0,))],
        ),
        ('<answer>[{"operation": "update", "lessons": [3], "text": "Pull."}]</answer>', None),
        ('<answer>[{"operation": "update", "lessons": [true], "text": "Pull."}]</answer>', None),
        ('<answer>[{"operation": "add", "text": "..."}]</answer>', None),
        ('<answer>[{"operation": "add"}, {"operation": "return"}]</answer>', None),
        ('<answer>[{"operation": "vote"}]</answer>', None),
        ("<answer>add: Push.</answer>", None),
        ("<answer>[]</answer>", None),
        ("Push.", None),
        (f"<answer>{'[' * 100_000}</answer>", None),
    ],
)
def test_an_answer_is_read_whole_or_not_at_all(
    answer: str, operations: list[ExperienceOperation] | None
) -> None:
    assert PROMPTS.read_extraction(answer, 2) == operations


def test_an_update_needs_a_lesson() -> None:
    assert PROMPTS.read_extraction('<answer>{"operation": "update", "text": "Pull."}</answer>', 0) is None


def test_a_merge_answers_with_the_texts_that_remain() -> None:
    assert PROMPTS.merging(LESSONS)[-1]["content"] == "1. Doors stick.\n2. Pull first.\n"
    assert PROMPTS.read_merging('<answer>["Pull.", "Wait."]</answer>') == ["Pull.", "Wait."]
    assert PROMPTS.read_merging("<answer>[]</answer>") == []
    for ill_formed in ('<answer>["", "Wait."]</answer>', "<answer>{}</answer>", "Wait."):
        assert PROMPTS.read_merging(ill_formed) is None


def test_the_extractor_is_shown_answers_without_thoughts() -> None:
    turns: list[Message] = [{"role": "assistant", "content": "<think>\npull?\n</think>\n\nopen"}, *TURNS[1:]]
    shown = EpisodeRecord(PROMPTS.attempt("Get out.", "A door.", []), turns, [], "It failed.", 0.0)
    assert PROMPTS.extraction(shown) == PROMPTS.extraction(record([]))
