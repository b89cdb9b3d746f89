"""Chat completions as OpenAI's clients ask for them: what a request may hold, and how answers are written.

A field that would change what is sampled, and that cannot be honoured, is refused by name. Temperature, seed
and the like are the run's own: the values of a request do not count, and its answer says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from erl_pipeline.environments.messages import Message, ToolSchema, turn_message
from erl_pipeline.episodes.gateway.sequences import Answer

OVERRIDDEN = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
"""Fields whose values are the run's own."""


class RequestRefused(Exception):
    """A request that cannot be answered; `param` is the field because of which, if there is one.

    Clients of OpenAI repeat a request after 408, 409, 429 and 5xx; none of those would be answered otherwise.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.code, self.status = param, code, status

    @property
    def body(self) -> dict[str, Any]:
        """The error in the form that clients read."""
        kind = "invalid_request_error" if self.status == 400 else "permission_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Strict(BaseModel):
    """Refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid")


class _Part(_Strict):
    type: Literal["text"]
    text: str


class _Function(_Strict):
    name: str = Field(min_length=1)
    arguments: str


class _Call(_Strict):
    id: str
    type: Literal["function"] = "function"
    function: _Function


class _Message(_Strict):
    """A message of a request. Clients send their own answers back with fields that are null, and reasoning
    that is not shown again."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)


class _ToolFunction(_Strict):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(_Strict):
    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _TextFormat(_Strict):
    type: Literal["text"]


class _Request(_Strict):
    model: str | None = None
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto"] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: str | list[str] | None = None
    n: int | None = Field(default=None, ge=1, le=64)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: _TextFormat | None = None
    logprobs: Literal[False] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None


@dataclass(frozen=True)
class ChatRequest:
    """What a request asks for. `stop`: texts that end an answer. `overridden`: fields that do not count."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    with_usage: bool = False
    overridden: tuple[str, ...] = ()


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises `RequestRefused` naming the field for whatever it cannot hold."""
    try:
        asked = _Request.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise RequestRefused(f"{where} is not supported", where, "unsupported_parameter") from error
        raise RequestRefused(f"{where or 'the body'}: {first['msg']}", where or None) from error
    tools = tuple({"type": "function", "function": _tool(each.function)} for each in asked.tools or ())
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    if not all(stop):
        raise RequestRefused("stop: an empty text would end every answer at once", "stop")
    limits = [each for each in (asked.max_tokens, asked.max_completion_tokens) if each is not None]
    return ChatRequest(
        messages=tuple(_message(number, each) for number, each in enumerate(asked.messages)),
        tools=tools,
        choices=asked.n or 1,
        max_tokens=min(limits, default=None),
        stop=stop,
        stream=bool(asked.stream),
        with_usage=asked.stream_options is not None and bool(asked.stream_options.include_usage),
        overridden=tuple(name for name in OVERRIDDEN if getattr(asked, name) is not None),
    )


def _tool(function: _ToolFunction) -> Mapping[str, Any]:
    return function.model_dump(include={"name", "description", "parameters"}, exclude_none=True)


def _message(number: int, given: _Message) -> Message:
    content = given.content
    text = "".join(part.text for part in content) if isinstance(content, list) else content or ""
    message: Message = {"role": "system" if given.role == "developer" else given.role, "content": text}
    if given.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(f"messages.{number}.tool_calls", call.function.arguments),
                },
            }
            for call in given.tool_calls
        ]
    if given.tool_call_id is not None:
        message["tool_call_id"] = given.tool_call_id
    if given.role == "tool" and given.name is not None:
        message["name"] = given.name
    return message


def _arguments(where: str, text: str) -> Mapping[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"{where}: its arguments are not JSON: {error}", where) from error
    if not isinstance(arguments, dict):
        raise RequestRefused(f"{where}: its arguments are no JSON object", where)
    return arguments


@dataclass(frozen=True)
class Choice:
    """One answer as clients read it."""

    answer: Answer

    @property
    def finish_reason(self) -> Literal["stop", "length", "tool_calls"]:
        if self.answer.cut_off:
            return "length"
        return "tool_calls" if "tool_calls" in turn_message(self.answer.turn) else "stop"

    @property
    def message(self) -> dict[str, Any]:
        """Arguments of tool calls are JSON texts."""
        said = turn_message(self.answer.turn)
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in said.get("tool_calls", [])
        ]
        return {"role": "assistant", "content": said["content"], **({"tool_calls": calls} if calls else {})}


@dataclass(frozen=True)
class ChatCompletion:
    """The answer to a request; `prompt_tokens` is the length of what was sent to the engine."""

    call_id: str
    model: str
    choices: Sequence[Choice]
    prompt_tokens: int

    @property
    def body(self) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        choices = [
            {
                "index": index,
                "message": choice.message,
                "logprobs": None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self.choices)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage()}

    def chunks(self, with_usage: bool) -> Iterator[dict[str, Any]]:
        """The same as a stream. Each choice is whole when it is sent: its tool calls are read from all of
        its tokens."""
        head = self._head("chat.completion.chunk")
        for index, choice in enumerate(self.choices):
            message = choice.message
            calls = [{"index": i, **call} for i, call in enumerate(message.pop("tool_calls", []))]
            delta = {**message, "tool_calls": calls} if calls else message
            for part, reason in ((delta, None), ({}, choice.finish_reason)):
                yield {
                    **head,
                    "choices": [{"index": index, "delta": part, "logprobs": None, "finish_reason": reason}],
                }
        if with_usage:
            yield {**head, "choices": [], "usage": self._usage()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.call_id, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self) -> dict[str, int]:
        answered = sum(choice.answer.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": answered,
            "total_tokens": self.prompt_tokens + answered,
        }
