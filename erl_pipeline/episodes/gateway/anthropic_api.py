"""Anthropic's messages, with tools and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from erl_pipeline.environments.messages import Message
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
    called_tool,
    event,
    given,
    said,
    tool_schema,
    validated,
)

_OVERRIDDEN = ("temperature", "top_p", "top_k")


class _Block(StrictOptions):
    """What is told to caches changes no answer. Clients send the blocks of an answer back as they were, or
    with each field that their library knows."""

    cache_control: dict[str, Any] | None = None


class _TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = Field(default=None, max_length=0)


_Text = Annotated[Many[_TextBlock], OrText]


class _Caller(Strict):
    type: Literal["direct"]


class _UseBlock(_Block):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: JsonObject
    caller: _Caller | None = None


class _ResultBlock(_Block):
    """What went wrong is said in the content of an error."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: _Text = Field(default_factory=list)
    is_error: bool | None = None


_AnyBlock = Annotated[_TextBlock | _UseBlock | _ResultBlock, Field(discriminator="type")]


class _Message(Strict):
    role: Literal["user", "assistant", "system"]
    content: Annotated[Many[_AnyBlock], OrText]


class _Tool(_Block):
    type: Literal["custom"] | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    eager_input_streaming: bool | None = None


class _ToolChoice(Strict):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class _Thinking(Strict):
    type: Literal["disabled"]


class _Request(StrictOptions):
    model: str | None = None
    messages: Many[_Message] = Field(min_length=1)
    max_tokens: int = Field(ge=1)
    system: _Text | None = None
    tools: Tools[_Tool] | None = None
    tool_choice: _ToolChoice | None = None
    stop_sequences: StopTexts[Annotated[str, Field(min_length=1)]] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: _Thinking | None = None
    metadata: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    service_tier: str | None = None


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises `RequestRefused` naming the field for whatever it cannot hold."""
    asked = validated(_Request, body)
    if asked.messages[-1].role == "assistant":
        where = f"messages.{len(asked.messages) - 1}"
        raise RequestRefused(f"{where}: an answer whose beginning is given is not supported", where)
    system: list[Message] = [{"role": "system", "content": said(asked.system)}] if asked.system else []
    told = [message for number, each in enumerate(asked.messages) for message in _messages(number, each)]
    return ChatRequest(
        messages=(*system, *told),
        tools=tuple(
            tool_schema(each.name, each.description, each.input_schema) for each in asked.tools or ()
        ),
        max_tokens=asked.max_tokens,
        stop=tuple(asked.stop_sequences or ()),
        one_call=asked.tool_choice is not None and bool(asked.tool_choice.disable_parallel_tool_use),
        stream=bool(asked.stream),
        overridden=given(asked, _OVERRIDDEN),
    )


def _messages(number: int, sent: _Message) -> list[Message]:
    """What a message of a request holds: each result of a tool is a message of its own, an answer of the
    policy is one with its tool calls."""
    message: Message = {"role": sent.role, "content": ""}
    results: list[Message] = []
    for place, block in enumerate(sent.content):
        if isinstance(block, _TextBlock):
            message["content"] += block.text
        elif isinstance(block, _UseBlock) and sent.role == "assistant":
            message.setdefault("tool_calls", []).append(called_tool(block.id, block.name, block.input))
        elif isinstance(block, _ResultBlock) and sent.role == "user":
            told = said(block.content)
            results.append({"role": "tool", "content": told, "tool_call_id": block.tool_use_id})
        else:
            where = f"messages.{number}.content.{place}"
            raise RequestRefused(f"{where}: {block.type} is no part of a message by {sent.role}", where)
    return [*results, message] if message["content"] or not results else results


def _answer(completion: ChatCompletion) -> dict[str, Any]:
    (choice,) = completion.choices
    return {
        **_begun(completion),
        "content": _blocks(choice),
        **_end(choice),
        "usage": {"input_tokens": completion.prompt_tokens, "output_tokens": completion.answered_tokens},
    }


def _begun(completion: ChatCompletion) -> dict[str, Any]:
    """An answer before anything is said."""
    return {
        "id": completion.call_id,
        "type": "message",
        "role": "assistant",
        "model": completion.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": completion.prompt_tokens, "output_tokens": 0},
    }


def _end(choice: Choice) -> dict[str, Any]:
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    stopped_by = choice.answer.stopped_by
    reason = reasons[choice.finish_reason] if stopped_by is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stopped_by}


def _blocks(choice: Choice) -> list[dict[str, Any]]:
    calls = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": call["function"]["arguments"],
        }
        for call in choice.tool_calls
    ]
    text = [{"type": "text", "text": choice.text}] if choice.text or not calls else []
    return [*text, *calls]


def _stream(request: ChatRequest, completion: ChatCompletion) -> Iterator[bytes]:
    for content in _events(completion):
        yield event(content, content["type"])


def _events(completion: ChatCompletion) -> Iterator[dict[str, Any]]:
    (choice,) = completion.choices
    yield {"type": "message_start", "message": _begun(completion)}
    for index, block in enumerate(_blocks(choice)):
        if block["type"] == "text":
            begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            told = json.dumps(block["input"], ensure_ascii=False)
            begun, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": told}
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    usage = {"output_tokens": completion.answered_tokens}
    yield {"type": "message_delta", "delta": _end(choice), "usage": usage}
    yield {"type": "message_stop"}


def _refusal(refused: RequestRefused) -> dict[str, Any]:
    # By these words clients know that they have to shorten the conversation.
    too_long = "prompt is too long: " if refused.code == "context_length_exceeded" else ""
    error: dict[str, Any] = {"type": refused.kind, "message": f"{too_long}{refused}"}
    if refused.param == "thread":
        # By these, that they have to send the whole conversation with each call.
        error["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": error}


def _refused_stream(refused: RequestRefused) -> Iterator[bytes]:
    yield event(_refusal(refused), "error")


ANTHROPIC = Api("messages", "/v1/messages", read_request, _answer, _stream, _refusal, _refused_stream)
