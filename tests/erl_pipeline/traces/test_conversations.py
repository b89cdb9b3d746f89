"""Calls of one conversation, put together."""

from __future__ import annotations

import pytest

from erl_pipeline.environments.messages import Message
from erl_pipeline.traces.calls import Call, Said, Score, ToolUse, conversation_of
from erl_pipeline.traces.conversations import put_together, scores_of_no_call, with_scores
from storage.errors import InputError


def call(said: str, span: str, *, conversation: str = "c", score: float | None = None) -> Call:
    """A call whose messages are the letters of `said`: small ones the user's, capitals the assistant's."""
    messages: list[Message] = [
        {"role": "assistant" if letter.isupper() else "user", "content": letter} for letter in said
    ]
    return Call(tuple(messages), (len(said) - 1,), "[]", conversation, f"t{span}", span, None, score)


def paths(*calls: Call) -> list[tuple[str, dict[int, str]]]:
    return [
        (
            "".join(message["content"] for message in each.messages),
            {place: answer.span_id for place, answer in each.answers.items()},
        )
        for each in put_together(calls)
    ]


def test_repeated_history_is_there_once_in_whatever_order() -> None:
    calls = call("aA", "1"), call("aAbB", "2"), call("aAbBcC", "3")
    expected = [("aAbBcC", {1: "1", 3: "2", 5: "3"})]
    assert paths(*calls) == paths(*reversed(calls)) == expected


def test_of_branches_the_longest_has_the_answers_before_them() -> None:
    calls = call("aA", "1"), call("aAbB", "2"), call("aAcCdD", "4"), call("aAcC", "3")
    assert paths(*calls) == [("aAbB", {3: "2"}), ("aAcCdD", {1: "1", 3: "3", 5: "4"})]


def test_what_no_call_answered_is_no_answer() -> None:
    assert paths(call("aXbB", "1")) == [("aXbB", {3: "1"})]


def test_an_edited_history_and_another_conversation_are_apart() -> None:
    assert paths(call("aA", "1"), call("eAbB", "2")) == [("aA", {1: "1"}), ("eAbB", {3: "2"})]
    apart = call("aA", "1"), call("aAbB", "2", conversation="d")
    assert paths(*apart) == [("aA", {1: "1"}), ("aAbB", {3: "2"})]


def test_a_call_that_was_exported_twice_counts_once_with_its_score() -> None:
    assert paths(call("aA", "1"), call("aA", "2", score=0.5)) == [("aA", {1: "2"})]


def test_scores_go_to_a_call_else_to_its_trace_else_to_its_conversation() -> None:
    calls = [call("aA", "1"), call("bB", "2"), call("cC", "3")]
    scores = [
        Score("right", 0.5, None, "c"),
        Score("right", 0.25, None, "t2"),
        Score("right", 1.0, None, "1"),
        Score("read", None, "Thanks!", "1"),
    ]
    assert [each.score for each in with_scores(calls, scores, None)] == [1.0, 0.25, 0.5]
    assert [each.comments for each in with_scores(calls, scores, "right")] == [("Thanks!",), (), ()]


def test_a_score_of_the_span_around_a_call_is_one_of_its_trace() -> None:
    calls = [call("aA", "1"), call("bB", "2")]
    around, elsewhere = Score("right", 0.0, None, "agent", "t1"), Score("right", 1.0, None, "x", "t9")
    assert [each.score for each in with_scores(calls, [around, elsewhere], None)] == [0.0, None]
    assert scores_of_no_call(calls, [around, elsewhere]) == 1


def test_one_of_several_scores_has_to_be_named() -> None:
    scores = [Score("tone", 0.5, None, "1"), Score("right", 1.0, None, "1")]
    for name in (None, "other"):
        with pytest.raises(InputError, match="these scores: right, tone; name one of them with --score"):
            with_scores([], scores, name)
    assert [each.score for each in with_scores([call("aA", "1")], scores, "tone")] == [0.5]


@pytest.mark.parametrize(("first", "second"), [("france", "spain"), ("spain", "france")])
def test_results_stand_in_the_order_of_their_calls(first: str, second: str) -> None:
    """Messages of a training file do not say whose result they are."""
    capitals = {"france": "Paris", "spain": "Madrid"}
    calls = tuple(ToolUse("look", {"at": each}, each) for each in capitals)
    results = [Said("m", "tool", capitals[each], answers_call=each) for each in (first, second)]
    said = [
        Said("m", "user", "Which?"),
        Said("m", "assistant", "", calls),
        *results,
        Said("m", "assistant", "So."),
    ]
    assert [each["content"] for each in conversation_of(said)[2:]] == ["Paris", "Madrid", "So."]
