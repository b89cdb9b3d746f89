"""Chat completions as OpenAI's clients ask for them: what a request may hold, and how answers are written.

A field that would change what is sampled, and that cannot be honoured, is refused by name. Temperature, seed
and the like are the run's own: the values of a request do not count, and its answer says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from erl_pipeline.environments.messages import Message, unmarked_thoughts
from erl_pipeline.episodes.gateway.api import (
    Api,
    ChatCompletion,
    ChatRequest,
    Choice,
    JsonObject,
    Many,
    OrText,
    RequestRefused,
    StopTexts,
    Strict,
    StrictOptions,
    Tools,
    arguments_text,
    called_tool,
    event,
    given,
    json_arguments,
    said,
    tool_schema,
    validated,
)

OVERRIDDEN = ("temperature", "top_p", "seed", "presence_penalty", "frequency_penalty")
"""Fields whose values are the run's own."""


class _Part(Strict):
    type: Literal["text"]
    text: str


class _Function(Strict):
    name: str = Field(min_length=1)
    arguments: str
    parsed_arguments: Any = None


class _Call(Strict):
    """What a client has put together from a stream still has the call's `index` there."""

    id: str
    type: Literal["function"] = "function"
    function: _Function
    index: int | None = None


class _Message(Strict):
    """A message of a request. Clients send their own answers back with fields that are null, with what they
    have read from them (`parsed`), and with reasoning that is not shown again."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[Many[_Part], OrText] | None = None
    name: str | None = None
    tool_calls: Many[_Call] | None = None
    tool_call_id: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    parsed: Any = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)


class _ToolFunction(Strict):
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class _Tool(Strict):
    type: Literal["function"]
    function: _ToolFunction


class _StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _TextFormat(Strict):
    type: Literal["text"]


def _as_texts(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class _Request(StrictOptions):
    model: str | None = None
    messages: Many[_Message] = Field(min_length=1)
    tools: Tools[_Tool] | None = None
    tool_choice: Literal["auto"] | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    stop: Annotated[StopTexts[str], BeforeValidator(_as_texts)] | None = None
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
    safety_identifier: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises `RequestRefused` naming the field for whatever it cannot hold."""
    asked = validated(_Request, body)
    stop = tuple(asked.stop or ())
    if not all(stop):
        raise RequestRefused("stop: an empty text would end every answer at once", "stop")
    limits = [each for each in (asked.max_tokens, asked.max_completion_tokens) if each is not None]
    return ChatRequest(
        messages=tuple(_message(number, each) for number, each in enumerate(asked.messages)),
        tools=tuple(
            tool_schema(each.function.name, each.function.description, each.function.parameters)
            for each in asked.tools or ()
        ),
        choices=asked.n or 1,
        max_tokens=min(limits, default=None),
        stop=stop,
        one_call=asked.parallel_tool_calls is False,
        stream=bool(asked.stream),
        with_usage=asked.stream_options is not None and bool(asked.stream_options.include_usage),
        overridden=given(asked, OVERRIDDEN),
    )


def _message(number: int, sent: _Message) -> Message:
    role = "system" if sent.role == "developer" else sent.role
    message: Message = {"role": role, "content": said(sent.content or ())}
    if sent.tool_calls:
        where = f"messages.{number}.tool_calls"
        message["tool_calls"] = [
            called_tool(call.id, call.function.name, json_arguments(where, call.function.arguments))
            for call in sent.tool_calls
        ]
    if sent.tool_call_id is not None:
        message["tool_call_id"] = sent.tool_call_id
    if sent.role == "tool" and sent.name is not None:
        message["name"] = sent.name
    return message


def _answer(completion: ChatCompletion) -> dict[str, Any]:
    choices = [
        {
            "index": index,
            "message": {**_said(choice), **({"tool_calls": calls} if (calls := _calls(choice)) else {})},
            "logprobs": None,
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(completion.choices)
    ]
    return {**_head(completion, "chat.completion"), "choices": choices, "usage": _usage(completion)}


def _stream(request: ChatRequest, completion: ChatCompletion) -> Iterator[bytes]:
    head = _head(completion, "chat.completion.chunk")
    for index, choice in enumerate(completion.choices):
        calls = [{"index": number, **call} for number, call in enumerate(_calls(choice))]
        delta = {**_said(choice), **({"tool_calls": calls} if calls else {})}
        for part, reason in ((delta, None), ({}, choice.finish_reason)):
            chunk = {"index": index, "delta": part, "logprobs": None, "finish_reason": reason}
            yield event({**head, "choices": [chunk]})
    if request.with_usage:
        yield event({**head, "choices": [], "usage": _usage(completion)})
    yield _DONE


_DONE = b"data: [DONE]\n\n"


def _said(choice: Choice) -> dict[str, Any]:
    thoughts = unmarked_thoughts(choice.answer.turn.thoughts)
    # Where servers of models that think have them, and clients look for them; OpenAI's API has none.
    reasoning = {"reasoning_content": thoughts} if thoughts else {}
    return {"role": "assistant", "content": choice.text, **reasoning}


def _calls(choice: Choice) -> list[dict[str, Any]]:
    """Arguments of tool calls are JSON texts."""
    return [
        {**call, "function": {**call["function"], "arguments": arguments_text(call)}}
        for call in choice.tool_calls
    ]


def _head(completion: ChatCompletion, kind: str) -> dict[str, Any]:
    return {
        "id": completion.call_id,
        "object": kind,
        "created": int(time.time()),
        "model": completion.model,
    }


def _usage(completion: ChatCompletion) -> dict[str, int]:
    return {
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.answered_tokens,
        "total_tokens": completion.prompt_tokens + completion.answered_tokens,
    }


def refusal(refused: RequestRefused) -> dict[str, Any]:
    """An error in the form that clients of OpenAI read."""
    error = {"message": str(refused), "type": refused.kind, "param": refused.param, "code": refused.code}
    return {"error": error}


def _refused_stream(refused: RequestRefused) -> Iterator[bytes]:
    yield event(refusal(refused))
    yield _DONE


CHAT = Api("chat", "/v1/chat/completions", read_request, _answer, _stream, refusal, _refused_stream)
