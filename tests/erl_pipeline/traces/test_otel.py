"""GenAI spans of OpenTelemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.traces.conversations import put_together
from tests.erl_pipeline.traces.files import attributes, read, refuse, request, span, texts

ASKED = {"role": "user", "parts": [{"type": "text", "content": "Weather in Paris?"}]}
CALL = {"type": "tool_call", "id": "c1", "name": "get_weather", "arguments": {"location": "Paris"}}
CALLED = {"role": "assistant", "parts": [CALL]}
RESULT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "rainy, 57°F"}]}
SAID = {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
SCHEMA = "https://opentelemetry.io/schemas/"
CHAT: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.response.model": "m-2",
    "gen_ai.conversation.id": "conv",
    "gen_ai.input.messages": [ASKED],
    "gen_ai.output.messages": [SAID],
}
CALL_TEXT = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Paris"}}\n</tool_call>'


def test_two_spans_with_a_tool_call_become_one_conversation(tmp_path: Path) -> None:
    """The second span repeats the history of the first. One has structured messages, the other JSON."""
    first = span("s1", {**CHAT, "gen_ai.output.messages": [{**CALLED, "finish_reason": "tool_call"}]})
    messages = {
        "gen_ai.input.messages": json.dumps([ASKED, CALLED, RESULT]),
        "gen_ai.output.messages": json.dumps([SAID]),
    }
    second = span("s2", {**CHAT, **messages, "gen_ai.usage.output_tokens": 4})
    other = span("s3", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_weather"})
    found = read(tmp_path, "otel", request(first, other, schema=f"{SCHEMA}1.37.0"), request(second))
    assert (len(found.calls), found.others) == (2, 1)
    [conversation] = put_together(found.calls)
    assert texts(conversation.messages) == [
        ("user", "Weather in Paris?"),
        ("assistant", CALL_TEXT),
        ("tool", "rainy, 57°F"),
        ("assistant", "It rains."),
    ]
    assert {place: call.span_id for place, call in conversation.answers.items()} == {1: "s1", 3: "s2"}
    assert {call.model for call in found.calls} == {"m-2"}


def test_instructions_tools_and_reasoning(tmp_path: Path) -> None:
    answer = {"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm."}, *SAID["parts"]]}
    more = {
        "gen_ai.system_instructions": [
            {"type": "text", "content": "Be brief."},
            {"type": "text", "content": "Be kind."},
        ],
        "gen_ai.tool.definitions": json.dumps([TOOL]),
        "gen_ai.output.messages": [answer],
    }
    [call] = read(
        tmp_path, "otel", request(span("s1", {**CHAT, **more}), schema=f"{SCHEMA}gen-ai/1.42.0")
    ).calls
    assert texts(call.messages)[0] == ("system", "Be brief.\nBe kind.")
    assert texts(call.messages)[-1] == ("assistant", "It rains.")
    function = {"name": "get_weather", "parameters": {"type": "object"}}
    assert json.loads(call.tools) == [{"type": "function", "function": function}]


def test_content_and_scores_in_events(tmp_path: Path) -> None:
    """Content in an event of the span, one score in another, and one in a log record."""
    content = {key: value for key, value in CHAT.items() if key.endswith(".messages")}
    plain = {key: value for key, value in CHAT.items() if key not in content}
    given = {"gen_ai.evaluation.name": "right", "gen_ai.evaluation.score.value": 0.75}
    events = [
        {"name": "gen_ai.client.inference.operation.details", "attributes": attributes(content)},
        {"name": "gen_ai.evaluation.result", "attributes": attributes(given)},
    ]
    comment = {"gen_ai.evaluation.name": "read", "gen_ai.evaluation.explanation": "Too short."}
    log = {
        "traceId": "t1",
        "spanId": "s1",
        "eventName": "gen_ai.evaluation.result",
        "attributes": attributes(comment),
    }
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}
    found = read(tmp_path, "otel", request(span("s1", plain, events=events)), logs)
    assert [(each.name, each.value, each.comment, each.target) for each in found.scores] == [
        ("right", 0.75, None, "s1"),
        ("read", None, "Too short.", "s1"),
    ]
    assert texts(found.calls[0].messages)[-1] == ("assistant", "It rains.")


PICTURE = {"type": "uri", "modality": "image", "uri": "https://x/y.png"}
CUT = json.dumps([ASKED])[:-10]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gen_ai.input.messages": CUT}, "gen_ai.input.messages: is cut or malformed"),
        ({"gen_ai.input.messages": [{"role": "user", "parts": [PICTURE]}]}, '0.parts.0.type: is "uri"; pic'),
        ({"gen_ai.input.messages": [{**ASKED, "role": "critic"}]}, 'messages.0.role: is "critic"'),
        (
            {"gen_ai.input.messages": [ASKED, CALLED, ASKED]},
            "1.tool_calls: 1 of its tool calls have no result",
        ),
        ({"gen_ai.input.messages": [ASKED, RESULT]}, "is the result of no tool call"),
        ({"gen_ai.output.messages": []}, "gen_ai.output.messages: has 0 answers; allowed is one"),
        ({"gen_ai.output.messages": [SAID, SAID]}, "has 2 answers"),
        ({"gen_ai.output.messages": [{**SAID, "finish_reason": "length"}]}, "cut at the limit of its tokens"),
        ({"gen_ai.response.finish_reasons": ["content_filter"]}, "the answer is not a whole one"),
        ({"gen_ai.output.type": "image"}, 'gen_ai.output.type: is "image"; only text is read'),
        ({"gen_ai.input.chunks": "x"}, "gen_ai.input.chunks: is no attribute that is known"),
        ({"gen_ai.prompt.0.content": "x"}, "is of the conventions before 1.37"),
        ({"error.type": "timeout"}, "the call failed"),
        ({"gen_ai.operation.name": "text_completion"}, "which has no messages"),
        ({"gen_ai.tool.definitions": [{"type": "web_search"}]}, "tools.0: is no function"),
    ],
)
def test_what_is_refused_is_named(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    refuse(tmp_path, "otel", request(span("s1", {**CHAT, **changes})), said)


@pytest.mark.parametrize("version", ["1.36.0", "1.42.0", "gen-ai/1.41.0", "gen-ai/1.43.0", "2.37.0"])
def test_other_versions_of_the_conventions_are_refused(version: str, tmp_path: Path) -> None:
    refuse(tmp_path, "otel", request(span("s1", CHAT), schema=SCHEMA + version), "schemaUrl: is")


def test_dropped_attributes_and_content_that_was_not_recorded_are_refused(tmp_path: Path) -> None:
    refuse(tmp_path, "otel", request(span("s1", CHAT, droppedAttributesCount=1)), "1 of its attributes")
    refuse(tmp_path, "otel", request(span("s1", CHAT, status={"code": 2})), "status: the call failed")
    bare = {"gen_ai.operation.name": "chat"}
    refuse(tmp_path, "otel", request(span("s1", bare)), "gen_ai.input.messages: is missing; content was not")
    refuse(tmp_path, "otel", {"spans": []}, "resourceSpans: is missing")
