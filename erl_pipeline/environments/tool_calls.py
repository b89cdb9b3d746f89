"""Reading tool calls in the policy's text: Hermes' form, which Qwen and many others are trained on.

A call is `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`. A call that cannot
be read is no error: the environment sees it, with what is wrong, and can tell the policy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from erl_pipeline.environments.messages import AssistantTurn, CalledTool, Message, ToolCall
from storage.texts import StorableTexts, read_json

MARKERS = ("<tool_call>", "</tool_call>")
"""What a call is written between. A tokenizer may have a special token for each."""

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


def read_turn(text: str, turn: int, texts: StorableTexts, *, has_tools: bool = True) -> AssistantTurn:
    """What the policy said in one turn, and the tool calls in it, in order. Everything in it is storable.

    Args:
        turn: counts the policy's turns; ids of calls derive from it.
        texts: counts the texts in which something is replaced.
        has_tools: whether calls are read.
    """
    said = texts.text(text)
    if not has_tools:
        return AssistantTurn(said)
    calls = [
        _read_call(match.group(1), match.group(2), f"call{turn:03d}{number:02d}", texts)
        for number, match in enumerate(_CALL.finditer(said))
    ]
    return AssistantTurn(said, tuple(calls))


def assistant_message(turn: AssistantTurn) -> Message:
    """The message of a turn. Well-formed calls become structured; all other text stays in the content."""
    if not turn.tool_calls:
        return {"role": "assistant", "content": turn.text}
    calls = iter(turn.tool_calls)
    content = _CALL.sub(lambda match: match.group(0) if next(calls).problem else "", turn.text)
    message: Message = {"role": "assistant", "content": content.strip()}
    structured = _structured(turn.tool_calls)
    if structured:
        message["tool_calls"] = structured
    return message


def _structured(calls: Sequence[ToolCall]) -> list[CalledTool]:
    return [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for call in calls
        if call.problem is None
    ]


def _read_call(text: str, end: str, call_id: str, texts: StorableTexts) -> ToolCall:
    if not end:
        return ToolCall(call_id, "", problem="the call has no </tool_call>")
    try:
        record: Any = texts.value(read_json(text))
    except ValueError as error:
        return ToolCall(call_id, "", problem=f"the call {error}")
    if not isinstance(record, dict) or not isinstance(record.get("name"), str) or not record["name"]:
        return ToolCall(call_id, "", problem='the call is no JSON object with a "name"')
    name, arguments = record["name"], record.get("arguments", {})
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, problem='"arguments" is no JSON object')
    return ToolCall(call_id, name, arguments)
