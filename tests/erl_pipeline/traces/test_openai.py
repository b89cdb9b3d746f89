"""OpenAI's JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.traces.conversations import put_together
from erl_pipeline.traces.reading import MalformedTraces, read_traces
from tests.erl_pipeline.traces.files import ANSWER, USER, read, refuse, texts, write

FUNCTION = {"name": "add", "arguments": '{"a": 2, "b": 2}'}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]}
CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'


def logged(*messages: Any, answer: Any = ANSWER, **choice: Any) -> dict[str, Any]:
    response = {"id": "r1", "model": "m-1", "choices": [{"index": 0, "message": answer, **choice}]}
    return {"request": {"model": "m", "messages": list(messages)}, "response": response}


def test_a_line_of_the_fine_tuning_format(tmp_path: Path) -> None:
    """An answer with weight 0 is not trained, and what follows the last answer is left out."""
    developer = {"role": "developer", "content": "Be brief."}
    line = {
        "messages": [developer, USER, {**ANSWER, "weight": 0}, USER, CALLS, RESULT],
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "parallel_tool_calls": False,
    }
    [call] = read(tmp_path, "openai", line).calls
    assert texts(call.messages) == [
        ("system", "Be brief."),
        ("user", "2 + 2?"),
        ("assistant", "4"),
        ("user", "2 + 2?"),
        ("assistant", CALLED),
    ]
    assert (call.answers, call.trace_id, call.model) == ((4,), "line-1", None)
    assert json.loads(call.tools) == line["tools"]


def test_lines_of_a_log_that_go_on_from_each_other_are_one_conversation(tmp_path: Path) -> None:
    empty: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None}
    first = logged(USER, answer={**ANSWER, **empty, "reasoning_content": "Hm."}, finish_reason="stop")
    second = logged(USER, ANSWER, {"role": "user", "content": "And 3 + 3?"})
    second["request"] = {"body": second["request"], "custom_id": "x"}
    found = read(tmp_path, "openai", first, second)
    [conversation] = put_together(found.calls)
    assert [said for _, said in texts(conversation.messages)] == ["2 + 2?", "4", "And 3 + 3?", "4"]
    assert list(conversation.answers) == [1, 3]


def test_a_document_can_be_one_line(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"messages": [USER, ANSWER]}, indent=1))
    assert len(read_traces(path, "openai", "m", skip_bad=False).calls) == 1


def cut(length: int) -> dict[str, Any]:
    return {**ANSWER, "content": "a" * length + "..."}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ('{"messages": [', "record: is cut or malformed: it is not JSON"),
        ("[" * 5000 + "]" * 5000, "record: is cut or malformed: it is nested deeper"),
        ('{"messages": ' + "[" * 100 + "]" * 100 + "}", "is nested deeper than 64 levels"),
        ('{"messages": [{"role": "user", "content": NaN}]}', "NaN is no number"),
        ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "messages"),
        ([1], "record: is [1]; allowed is an object"),
        ({"messages": "x"}, "messages: Input should be a valid list"),
        ({"messages": [USER]}, "messages: the answer is missing"),
        ({"messages": [USER, {**ANSWER, "weight": 0}]}, "messages: the answer is missing"),
        ({"messages": [USER, {**ANSWER, "content": " "}]}, "messages.1.content: the answer is missing"),
        ({"messages": [USER, {**ANSWER, "refusal": "No."}]}, "messages.1.refusal: Extra inputs"),
        ({"messages": [ANSWER]}, "messages.0: is the assistant's; a conversation begins"),
        ({"messages": [USER, cut(61)]}, 'messages.1.content: is cut at a length limit: it ends with "aaa'),
        ({"messages": [USER, cut(1000)]}, "is cut at a length limit"),
        ({"messages": [USER, {**ANSWER, "content": "a [truncated]"}]}, "is cut at a length limit"),
        ({"messages": [{**USER, "content": "of [REDACTED_NAME], please"}, ANSWER]}, "0.content: is redacted"),
        (
            {"messages": [USER, CALLS, USER, ANSWER]},
            "messages.1.tool_calls: 1 of its tool calls have no result",
        ),
        ({"messages": [USER, CALLS, {**RESULT, "tool_call_id": "c2"}, ANSWER]}, 'is the result of "c2"'),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWER]}, "pictures and sound"),
        ({"messages": [USER, ANSWER], "functions": [1]}, "functions: Extra inputs are not permitted"),
        ({"prompt": "x", "completion": "y"}, "messages: Field required"),
        ({"request": {"messages": [USER]}}, "response: is missing"),
        (logged(USER, finish_reason="length"), "the answer is cut at the limit of its tokens"),
        ({"request": {"messages": [USER]}, "response": {"choices": [{"delta": {}}]}}, "choices.0"),
    ],
)
def test_what_is_refused_is_named(record: Any, said: str, tmp_path: Path) -> None:
    refuse(tmp_path, "openai", record, said)


def test_an_ellipsis_at_another_length_is_no_cut(tmp_path: Path) -> None:
    assert len(read(tmp_path, "openai", {"messages": [USER, cut(70)]}).calls) == 1


def test_calls_of_another_model_are_refused_and_can_be_left_out(tmp_path: Path) -> None:
    for model in ("other", "m-"):
        with pytest.raises(
            MalformedTraces, match=f'line 1: model: is "m-1", and --source-model is "{model}"'
        ):
            read(tmp_path, "openai", logged(USER), model=model)
    path = write(tmp_path, logged(USER), "{", {"messages": [USER, ANSWER]})
    found = read_traces(path, "openai", "other", skip_bad=True)
    assert (len(found.calls), found.refused) == (1, 2)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"messages": [USER, ANSWER]})
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with pytest.raises(MalformedTraces, match="line 2: record: is not UTF-8 at byte 1"):
        read_traces(path, "openai", "m", skip_bad=False)
    path.write_text("\n")
    with pytest.raises(MalformedTraces, match="it holds no calls"):
        read_traces(path, "openai", "m", skip_bad=False)


def test_an_answer_whose_weight_is_null_is_trained(tmp_path: Path) -> None:
    line = {"messages": [USER, {**ANSWER, "weight": None}, USER, ANSWER]}
    [call] = read(tmp_path, "openai", line).calls
    assert call.answers == (1, 3)
