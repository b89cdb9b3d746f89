from typing import Any

import pytest

from erl_pipeline.environments.messages import (
    Message,
    ToolCall,
    answer_start,
    assistant_message,
    read_turn,
    turn_message,
    user_message,
    with_structured_calls,
    without_thoughts,
    words_of,
)
from storage.texts import StorableTexts


def call(json: str) -> str:
    return f"<tool_call>\n{json}\n</tool_call>"


def test_calls_are_read_in_their_order_and_leave_the_content() -> None:
    add, stop = call('{"name": "add", "arguments": {"a": 1}}'), call('{"name": "stop"}')
    text = f"First. {add} Then. {stop}"
    turn = read_turn(text, 2, StorableTexts())

    assert turn.text == text
    assert turn.tool_calls == (ToolCall("call00200", "add", {"a": 1}), ToolCall("call00201", "stop", {}))
    message = turn_message(turn)
    assert message["content"] == "First.  Then."
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["add", "stop"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (call("add 1"), "the call is not JSON"),
        (call("[1]"), 'no JSON object with a "name"'),
        (call('{"name": 3}'), 'no JSON object with a "name"'),
        (call('{"name": "add", "arguments": "1"}'), '"arguments" is no JSON object'),
        ('<tool_call>{"name": "add"}', "the call has no </tool_call>"),
        (call("[" * 100_000), "the call is nested deeper than 64 levels"),
        (call('{"name": "add", "arguments": ' + '{"a": ' * 80 + "1" + "}" * 81), "deeper than 64 levels"),
        (call('{"name": "add", "arguments": {"a": NaN}}'), "the call is not JSON: NaN is no number there"),
        (call('{"name": "add", "arguments": {"a": -Infinity}}'), "-Infinity is no number there"),
        (call('{"name": "add", "arguments": {"a": 1e999}}'), "the call has a number that is too large"),
        (call('{"name": "add", "arguments": {"a": 9223372036854775808}}'), "too large; allowed are 64 bits"),
        (call('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}"), "too large; allowed are 64 bits"),
    ],
)
def test_an_ill_formed_call_is_seen_with_what_is_wrong(text: str, problem: str) -> None:
    turn = read_turn(f"Now {text}", 0, StorableTexts())
    (seen,) = turn.tool_calls
    assert seen.problem is not None
    assert problem in seen.problem
    message = turn_message(turn)
    assert message["content"] == f"Now {text}"
    assert "tool_calls" not in message


def test_a_call_that_is_not_closed_does_not_hide_the_next() -> None:
    turn = read_turn('<tool_call>{"name": <tool_call>{"name": "add"}</tool_call>', 0, StorableTexts())
    assert [(each.name, each.problem is None) for each in turn.tool_calls] == [("", False), ("add", True)]


def test_a_message_says_its_content_and_its_calls() -> None:
    said = "I look. " + call('{"name": "search", "arguments": {"query": "Brägg"}}')
    message = turn_message(read_turn(said, 0, StorableTexts()))
    assert words_of(message) == 'I look.\nsearch({"query": "Brägg"})'
    assert words_of({**message, "content": ""}) == 'search({"query": "Brägg"})'
    for content in ("", " a\n"):
        assert words_of(assistant_message(content)) == content


def test_text_without_calls_has_none() -> None:
    assert read_turn("go up", 0, StorableTexts()).tool_calls == ()


def test_halves_of_characters_in_a_call_are_replaced_and_counted_wherever_they_are() -> None:
    texts = StorableTexts()
    text = call(
        '{"name": "\\ud83d", "arguments": {"\\udc80": {"b": ["\\ud83d\\ude00", "x\\ud800"]}, "c": "d"}}'
    )
    (seen,) = read_turn(text, 0, texts).tool_calls
    assert seen == ToolCall("call00000", "\ufffd", {"\ufffd": {"b": ["\U0001f600", "x\ufffd"]}, "c": "d"})
    assert texts.replaced == 3


def test_what_was_said_without_tools_is_made_storable_too() -> None:
    texts = StorableTexts()
    assert read_turn("go \ud83d up", 0, texts, None).text == "go \ufffd up"
    assert texts.replaced == 1


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("up", "up"),
        ("<think>\nUp? No.\n</think>\n\ndown", "down"),
        ("Up? No.\n</think>\ndown", "down"),  # The template has begun the thoughts.
        ("<think>\nUp? Or", ""),
        ("The tag <think> begins thoughts.", "The tag <think> begins thoughts."),
    ],
)
def test_an_answer_stands_behind_the_thoughts(text: str, answer: str) -> None:
    assert text[answer_start(text) :] == answer


def test_a_call_in_thoughts_is_none() -> None:
    call = '<tool_call>{"name": "look"}</tool_call>'
    thoughts = f"<think>\nI could {call}, but no.\n</think>"
    assert read_turn(f"{thoughts}Fine.", 0, StorableTexts()).tool_calls == ()
    turn = read_turn(f"{thoughts}{call}", 0, StorableTexts())
    assert [each.name for each in turn.tool_calls] == ["look"]
    assert turn_message(turn)["content"] == thoughts
    assert read_turn(f"<think>\nI could {call}", 0, StorableTexts()).tool_calls == ()


@pytest.mark.parametrize(
    ("said", "thinks", "thoughts", "answer"),
    [
        ("<think>\nUp?\n</think>\n\ndown", False, "<think>\nUp?\n</think>\n\n", "down"),
        ("Up?\n</think>\n\ndown", True, "Up?\n</think>\n\n", "down"),
        ("Up? Or", True, "Up? Or", ""),  # It was cut off in thoughts that the prompt has opened.
        ("<think>Up? Or", False, "<think>Up? Or", ""),
        ("down", False, "", "down"),
    ],
)
def test_a_turn_is_its_thoughts_and_its_answer(said: str, thinks: bool, thoughts: str, answer: str) -> None:
    turn = read_turn(said, 0, StorableTexts(), None, thinks=thinks)
    assert (turn.thoughts, turn.text) == (thoughts, answer)
    assert turn_message(turn)["content"].removeprefix("<think>") == said.removeprefix("<think>")
    assert without_thoughts(turn_message(turn))["content"] == answer


def test_a_message_is_shown_to_others_without_thoughts() -> None:
    said: Message = {"role": "assistant", "content": "<think>\nUp?\n</think>\n\ndown"}
    assert without_thoughts(said) == {"role": "assistant", "content": "down"}
    assert without_thoughts(user_message("</think>x")) == user_message("</think>x")
    imported: Any = {"role": "assistant", "content": None}
    assert without_thoughts(imported) == imported


def test_results_in_a_file_get_the_ids_of_their_calls_also_behind_one_that_cannot_be_read() -> None:
    good = '<tool_call>{"name": "look"}</tool_call>'
    results: list[Message] = [{"role": "tool", "content": each} for each in ("what?", "7")]
    said, first, second = with_structured_calls(
        [assistant_message(f"<tool_call>{{</tool_call>{good}"), *results]
    )
    assert [each["id"] for each in said["tool_calls"]] == ["call00001"]
    assert "tool_call_id" not in first
    assert (second["tool_call_id"], second["name"]) == ("call00001", "look")
