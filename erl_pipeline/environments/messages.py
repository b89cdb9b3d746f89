"""The messages of a conversation, as chat templates of transformers and TRL read them, and the tool calls in
what a policy says.

Calls are read in Hermes' form, which Qwen and many others are trained on:
`<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`. A call that cannot be read is no
error: the environment sees it, with what is wrong, and can tell the policy.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from storage.texts import StorableTexts, read_json

ToolSchema = Mapping[str, Any]
"""A tool in the form that chat templates take: `{"type": "function", "function": {"name": ...,
"description": ..., "parameters": JSON schema}}`."""


class FunctionCall(TypedDict):
    """Which tool is called, with which arguments."""

    name: str
    arguments: Mapping[str, Any]


class CalledTool(TypedDict):
    """A tool call within an assistant's message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(TypedDict):
    """One message. A `tool` message is the answer to the call whose id it names."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: NotRequired[list[CalledTool]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


@dataclass(frozen=True)
class ToolCall:
    """A tool call that the policy wrote.

    `problem` says what is wrong with an ill-formed one, whose `name` and `arguments` may then be empty; it
    is None for all others. Whether the tool exists and takes these arguments is for the environment to say.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class AssistantTurn:
    """What the policy said in one turn: `text` is its answer, `tool_calls` are those in it, in their order.

    Only an environment that offers tools is given tool calls. `thoughts` are what a model wrote before its
    answer, with the `</think>` that ends them. Where they do not end, the answer is empty.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    thoughts: str = ""


def user_message(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant_message(content: str) -> Message:
    """A turn of the policy without tool calls."""
    return {"role": "assistant", "content": content}


def tool_message(call: ToolCall, content: str) -> Message:
    """The answer to a tool call; also for one that could not be done."""
    return {"role": "tool", "content": content, "tool_call_id": call.call_id, "name": call.name}


def opening(system: str, user: str) -> list[Message]:
    """A system message, left out where it would be empty, and a user message."""
    asked: Message = {"role": "user", "content": user}
    return [{"role": "system", "content": system}, asked] if system else [asked]


def without_thoughts(message: Message) -> Message:
    """A message of a conversation without the thoughts before an assistant's answer, for those who are shown
    what was said."""
    if message["role"] != "assistant" or not message["content"]:  # Imported ones may have null.
        return message
    return {**message, "content": message["content"][answer_start(message["content"]) :]}


def words_of(message: Message) -> str:
    """What a message says, for a reader: its content, and its tool calls, each as `name({"key": "value"})` on
    a line of its own. The content alone leaves out what was called."""
    lines = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls") or ():
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        lines.append(f"{call['function']['name']}({arguments})")
    return "\n".join(lines)


MARKERS = ("<tool_call>", "</tool_call>")
"""What a call is written between. A tokenizer may have a special token for each."""

THOUGHTS = _THOUGHTS_BEGIN, _THOUGHTS_END = "<think>", "</think>"
"""What thoughts are written between. Many chat templates open them already."""

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


def read_turn(
    text: str, turn: int, texts: StorableTexts, *, has_tools: bool = True, thinks: bool = False
) -> AssistantTurn:
    """What the policy said in one turn: thoughts, answer, and the tool calls in the answer, in order.
    Everything in it is storable.

    Args:
        turn: counts the policy's turns; ids of calls derive from it.
        texts: counts the texts in which something is replaced.
        has_tools: whether calls are read.
        thinks: whether the text begins within thoughts, which the prompt has opened.
    """
    said = texts.text(text)
    start = answer_start(said, thinks=thinks)
    thoughts, answer = said[:start], said[start:]
    if not has_tools:
        return AssistantTurn(answer, thoughts=thoughts)
    calls = [
        _read_call(match.group(1), match.group(2), f"call{turn:03d}{number:02d}", texts)
        for number, match in enumerate(_CALL.finditer(answer))
    ]
    return AssistantTurn(answer, tuple(calls), thoughts)


def answer_start(text: str, *, thinks: bool = False) -> int:
    """Where the answer begins behind the thoughts of a model that writes them, as Qwen3 and DeepSeek-R1:
    behind the last `</think>` and white space. At the end where thoughts do not end; 0 without thoughts.

    `thinks`: whether the text begins within thoughts; else they begin with `<think>`.
    """
    end = text.rfind(_THOUGHTS_END)
    if end >= 0:
        return len(text) - len(text[end + len(_THOUGHTS_END) :].lstrip())
    return len(text) if thinks or text.lstrip().startswith(_THOUGHTS_BEGIN) else 0


def turn_message(turn: AssistantTurn) -> Message:
    """The message of a turn, with its thoughts. Well-formed calls become structured; all other text stays in
    the content."""
    if not turn.tool_calls:
        return {"role": "assistant", "content": turn.thoughts + turn.text}
    calls = iter(turn.tool_calls)
    answer = _CALL.sub(lambda match: match.group(0) if next(calls).problem else "", turn.text)
    content = turn.thoughts + answer
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
