import pytest

from erl_pipeline.environments.messages import ToolCall
from erl_pipeline.environments.tool_calls import assistant_message, read_turn
from storage.texts import StorableTexts


def call(json: str) -> str:
    return f"<tool_call>\n{json}\n</tool_call>"


def test_calls_are_read_in_their_order_and_leave_the_content() -> None:
    add, stop = call('{"name": "add", "arguments": {"a": 1}}'), call('{"name": "stop"}')
    text = f"First. {add} Then. {stop}"
    turn = read_turn(text, 2, StorableTexts())

    assert turn.text == text
    assert turn.tool_calls == (ToolCall("call00200", "add", {"a": 1}), ToolCall("call00201", "stop", {}))
    message = assistant_message(turn)
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
        (call("[" * 100_000), "the call is not JSON"),
    ],
)
def test_an_ill_formed_call_is_seen_with_what_is_wrong(text: str, problem: str) -> None:
    turn = read_turn(f"Now {text}", 0, StorableTexts())
    (seen,) = turn.tool_calls
    assert seen.problem is not None
    assert problem in seen.problem
    message = assistant_message(turn)
    assert message["content"] == f"Now {text}"
    assert "tool_calls" not in message


def test_a_call_that_is_not_closed_does_not_hide_the_next() -> None:
    turn = read_turn('<tool_call>{"name": <tool_call>{"name": "add"}</tool_call>', 0, StorableTexts())
    assert [(each.name, each.problem is None) for each in turn.tool_calls] == [("", False), ("add", True)]


def test_text_without_calls_has_none() -> None:
    assert read_turn("go up", 0, StorableTexts()).tool_calls == ()
