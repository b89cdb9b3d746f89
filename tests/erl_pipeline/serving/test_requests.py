"""What a call may hold: one call must not take the time or the memory of all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from erl_pipeline.episodes.dialogue import LONG_TEXT
from erl_pipeline.episodes.gateway.anthropic_api import ANTHROPIC
from erl_pipeline.episodes.gateway.api import RequestRefused
from erl_pipeline.episodes.gateway.chat_api import CHAT
from erl_pipeline.episodes.gateway.responses_api import RESPONSES
from erl_pipeline.serving.answering import _characters
from erl_pipeline.serving.requests import read_call

WRONG = [0] * 200_000
UNKNOWN = {f"k{number}": 0 for number in range(200_000)}
GO: Any = {"role": "user", "content": "go"}
TEXT = {"type": "text", "text": ""}
CALL = {"id": "c", "function": {"name": "f", "arguments": ""}}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}, "caller": UNKNOWN}


def chat(**changed: Any) -> Any:
    return CHAT, {"messages": [GO], **changed}


def responses(**changed: Any) -> Any:
    return RESPONSES, {"input": "go", **changed}


def messages(**changed: Any) -> Any:
    return ANTHROPIC, {"max_tokens": 5, "messages": [GO], **changed}


def by_user(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (chat(messages=WRONG), "messages.0"),
        (chat(messages=by_user(WRONG)), "messages.0.content.0"),
        (chat(messages=[{"role": "assistant", "tool_calls": WRONG}]), "messages.0.tool_calls.0"),
        (chat(messages=[UNKNOWN]), "messages.0"),
        (chat(tools=WRONG), "tools.0"),
        (chat(stop=WRONG), "stop.0"),
        (chat(stream_options=UNKNOWN), "stream_options"),
        (chat(**UNKNOWN), None),
        (responses(input=WRONG), "input.0.message"),
        (responses(input=by_user(WRONG)), "input.0.message.content.0"),
        (responses(tools=WRONG), "tools.0"),
        (responses(include=WRONG), "include.0"),
        (messages(messages=WRONG), "messages.0"),
        (messages(messages=by_user(WRONG)), "messages.0.content.0"),
        (messages(messages=by_user([USE])), "messages.0.content.0.tool_use.caller"),
        (messages(system=WRONG), "system.0"),
        (messages(tools=WRONG), "tools.0"),
        (messages(stop_sequences=WRONG), "stop_sequences.0"),
    ],
)
def test_of_many_mistakes_only_the_first_is_looked_for(asked: Any, field: str | None) -> None:
    """200,000 would take a quarter of a gigabyte."""
    api, body = asked
    with pytest.raises(RequestRefused) as refused:
        api.read(json.dumps(body).encode())
    assert refused.value.param == field
    assert isinstance(refused.value.__cause__, ValidationError)
    assert refused.value.__cause__.error_count() == 1


def test_a_served_policy_looks_for_one_mistake_only() -> None:
    with pytest.raises(RequestRefused, match=r"messages\.0: Input should be an object") as refused:
        read_call(b'{"messages":[' + b"0," * 200_000 + b"0]}")
    assert isinstance(refused.value.__cause__, ValidationError)
    assert refused.value.__cause__.error_count() == 1


@pytest.mark.parametrize(
    ("asked", "field", "most"),
    [
        (chat(messages=[GO] * 16_385), "messages", 16_384),
        (chat(messages=by_user([TEXT] * 16_385)), "messages.0.content", 16_384),
        (
            chat(messages=[{"role": "assistant", "tool_calls": [CALL] * 16_385}]),
            "messages.0.tool_calls",
            16_384,
        ),
        (chat(tools=[{"type": "function", "function": {"name": "f"}}] * 1025), "tools", 1024),
        (chat(stop=["x"] * 65), "stop", 64),
        (responses(input=[GO] * 16_385), "input", 16_384),
        (responses(tools=[{"type": "function", "name": "f"}] * 1025), "tools", 1024),
        (messages(messages=[GO] * 16_385), "messages", 16_384),
        (messages(tools=[{"name": "f", "input_schema": {}}] * 1025), "tools", 1024),
        (messages(stop_sequences=["x"] * 65), "stop_sequences", 64),
    ],
)
def test_too_many_of_anything_is_refused_by_name(asked: Any, field: str, most: int) -> None:
    api, body = asked
    with pytest.raises(RequestRefused, match=f"{field}: List should have at most {most} items") as refused:
        api.read(json.dumps(body).encode())
    assert refused.value.param == field


def test_as_many_as_are_allowed_are_read() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    api, body = chat(messages=[GO] * 16_384, tools=[tool] * 1024, stop=["x"] * 64)
    read = api.read(json.dumps(body).encode())
    assert (len(read.messages), len(read.tools), len(read.stop)) == (16_384, 1024, 64)


@pytest.mark.parametrize(
    "sent",
    [
        [{"role": "user", "content": ""}] * 2000,
        [{"role": "tool", "content": "", "tool_call_id": "c" * LONG_TEXT}],
        [{"role": "tool", "content": "", "tool_call_id": "c", "name": "n" * LONG_TEXT}],
    ],
)
def test_a_conversation_is_long_without_a_word(sent: Any) -> None:
    """Else it would become tokens in the event loop."""
    read = read_call(json.dumps({"messages": sent}).encode())
    assert _characters(read.chat) > LONG_TEXT
