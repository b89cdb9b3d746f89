"""LLM spans of OpenInference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.traces.conversations import put_together
from tests.erl_pipeline.traces.files import read, refuse, request, span, texts

IN, OUT = "llm.input_messages", "llm.output_messages"
ASKED = {f"{IN}.0.message.role": "user", f"{IN}.0.message.content": "2 + 2?"}
ADD = "message.tool_calls.0.tool_call"
FLAT: dict[str, Any] = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "m",
    "session.id": "session",
    **ASKED,
    f"{OUT}.0.message.role": "assistant",
    f"{OUT}.0.message.content": "4",
    "llm.tools.0.tool.json_schema": '{"type": "function", "function": {"name": "add"}}',
    "llm.token_count.completion": 1,
}
FIRST = {
    **{key: value for key, value in FLAT.items() if not key.endswith("0.message.content") or key in ASKED},
    f"{OUT}.0.{ADD}.id": "c1",
    f"{OUT}.0.{ADD}.function.name": "add",
    f"{OUT}.0.{ADD}.function.arguments": '{"a": 2, "b": 2}',
}
CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'
HISTORY = {
    f"{IN}.1.message.role": "assistant",
    f"{IN}.1.{ADD}.id": "c1",
    f"{IN}.1.{ADD}.function.name": "add",
    f"{IN}.1.{ADD}.function.arguments": '{"a": 2, "b": 2}',
    f"{IN}.2.message.role": "tool",
    f"{IN}.2.message.content": "4",
    f"{IN}.2.message.tool_call_id": "c1",
}


def test_flattened_spans_become_one_conversation(tmp_path: Path) -> None:
    spans = request(span("s1", FIRST), span("s0", {"openinference.span.kind": "TOOL"}))
    found = read(tmp_path, "openinference", spans, request(span("s2", {**FLAT, **HISTORY})))
    assert found.others == 1
    [conversation] = put_together(found.calls)
    assert texts(conversation.messages) == [
        ("user", "2 + 2?"),
        ("assistant", CALLED),
        ("tool", "4"),
        ("assistant", "4"),
    ]
    assert {place: call.span_id for place, call in conversation.answers.items()} == {1: "s1", 3: "s2"}
    assert conversation.tools == '[{"type": "function", "function": {"name": "add"}}]'


def test_a_span_of_phoenix_has_its_messages_nested(tmp_path: Path) -> None:
    parts = [{"message_content.type": "text", "message_content.text": "2 + 2?"}]
    phoenix = {
        "context": {"trace_id": "t9", "span_id": "s9"},
        "span_kind": "LLM",
        "status_code": "OK",
        "attributes": {
            "llm": {"model_name": "m"},
            "llm.input_messages": [{"message.role": "user", "message.contents": parts}],
            "llm.output_messages": [{"message.role": "assistant", "message.content": "4"}],
        },
        "events": [],
    }
    [call] = read(tmp_path, "openinference", phoenix).calls
    assert texts(call.messages) == [("user", "2 + 2?"), ("assistant", "4")]
    assert (call.trace_id, call.span_id, call.conversation) == ("t9", "s9", "t9")
    refuse(tmp_path, "openinference", {**phoenix, "status_code": "ERROR"}, "status: the call failed")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({f"{IN}.0.message.content": "__REDACTED__"}, "llm.input_messages.0.message.content: is redacted"),
        ({f"{OUT}.0.message.content": ""}, "output_messages.0.message.content: the answer is missing"),
        ({f"{OUT}.1.message.role": "assistant"}, "has 2 answers; allowed is one"),
        ({f"{IN}.2.message.role": "user"}, "llm.input_messages.1: is missing, and a later one is there"),
        ({f"{IN}.0.message.image": "x"}, "input_messages.0.message.image: Extra inputs are not permitted"),
        ({f"{IN}.0.message.contents.0.message_content.type": "image"}, 'is "image"; only text and'),
        ({f"{IN}.0": "x"}, "contradicts another attribute"),
        ({f"{IN}.0.message" + ".x" * 5000: "x"}, "is nested too deeply"),
        ({f"{IN}.0.message.role": "function"}, 'message.role: is "function"'),
        ({"llm.function_call": "{}"}, "llm.function_call: is of completions or of former function calls"),
        ({"llm.finish_reason": "length"}, 'llm.finish_reason: is "length": the answer is cut'),
        ({"llm.tools.0.tool.json_schema": "{"}, "llm.tools.0: is cut or malformed"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    refuse(tmp_path, "openinference", request(span("s1", {**FLAT, **changes})), said)


def test_hidden_messages_are_refused(tmp_path: Path) -> None:
    hidden = {key: value for key, value in FLAT.items() if not key.startswith(IN)}
    refuse(tmp_path, "openinference", request(span("s1", hidden)), "llm.input_messages: is missing; content")
