from __future__ import annotations

from collections.abc import Sequence

import pytest

from erl_pipeline.environments.hidden_words.prompts import CompactPrompts
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptReport

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
