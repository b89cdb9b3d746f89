"""The messages of a conversation, as chat templates of transformers and TRL read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

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
    """What the policy said in one turn: all of its text, and the tool calls in it, in their order.

    Only an environment that offers tools is given tool calls.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()


def user_message(content: str) -> Message:
    """A message of the environment."""
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
