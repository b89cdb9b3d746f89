"""OpenAI's Responses, without state: each request holds the whole conversation as items.

An answer of the policy is several items: a message, and one for each tool call. They come back as such, and
are one message again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from erl_pipeline.environments.messages import Message, assistant_message
from erl_pipeline.episodes.gateway.api import (
    Api,
    ChatCompletion,
    ChatRequest,
    JsonObject,
    Many,
    OrText,
    RequestRefused,
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
from erl_pipeline.episodes.gateway.chat_api import refusal

_OVERRIDDEN = ("temperature", "top_p")


class _Part(Strict):
    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = Field(default=None, max_length=0)
    logprobs: list[Any] | None = Field(default=None, max_length=0)
    parsed: Any = None


_Text = Annotated[Many[_Part], OrText]


class _Item(StrictOptions):
    """Clients send the items of an answer back as they were, or with each field that their library knows."""

    id: str | None = None
    status: str | None = None


class _MessageItem(_Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Text
    phase: str | None = None


class _CallItem(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str = Field(min_length=1)
    arguments: str
    parsed_arguments: Any = None
    namespace: None = None
    caller: None = None


class _OutputItem(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: _Text


def _kind(item: Any) -> Any:
    """A message may come without its type."""
    return item.get("type", "message") if isinstance(item, dict) else "message"


_AnyItem = Annotated[
    Annotated[_MessageItem, Tag("message")]
    | Annotated[_CallItem, Tag("function_call")]
    | Annotated[_OutputItem, Tag("function_call_output")],
    Discriminator(_kind),
]


def _as_items(given: Any) -> Any:
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class _Tool(StrictOptions):
    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class _TextFormat(Strict):
    type: Literal["text"]


class _TextOptions(StrictOptions):
    format: _TextFormat | None = None


class _StreamOptions(Strict):
    include_obfuscation: bool | None = None


class _Request(StrictOptions):
    model: str | None = None
    input: Annotated[Many[_AnyItem], BeforeValidator(_as_items)] = Field(min_length=1)
    instructions: str | None = None
    tools: Tools[_Tool] | None = None
    tool_choice: Literal["auto"] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: Literal[0] | None = None
    text: _TextOptions | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    # What a policy does not think in secret is asked for in vain.
    include: Many[Literal["reasoning.encrypted_content"]] | None = None
    reasoning: None = None
    previous_response_id: None = None
    conversation: None = None
    prompt: None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises `RequestRefused` naming the field for whatever it cannot hold."""
    asked = validated(_Request, body)
    return ChatRequest(
        messages=tuple(_messages(asked)),
        tools=tuple(tool_schema(each.name, each.description, each.parameters) for each in asked.tools or ()),
        max_tokens=asked.max_output_tokens,
        one_call=asked.parallel_tool_calls is False,
        stream=bool(asked.stream),
        overridden=given(asked, _OVERRIDDEN),
    )


def _messages(asked: _Request) -> list[Message]:
    found: list[Message] = []
    if asked.instructions:
        found.append({"role": "system", "content": asked.instructions})
    for number, item in enumerate(asked.input):
        if isinstance(item, _CallItem):
            if not found or found[-1]["role"] != "assistant":
                found.append(assistant_message(""))
            arguments = json_arguments(f"input.{number}", item.arguments)
            found[-1].setdefault("tool_calls", []).append(called_tool(item.call_id, item.name, arguments))
        elif isinstance(item, _OutputItem):
            found.append({"role": "tool", "content": said(item.output), "tool_call_id": item.call_id})
        else:
            role = "system" if item.role == "developer" else item.role
            found.append({"role": role, "content": said(item.content)})
    return found


def _answer(completion: ChatCompletion) -> dict[str, Any]:
    cut_off = completion.choices[0].answer.cut_off
    prompt, answered = completion.prompt_tokens, completion.answered_tokens
    return {
        **_begun(completion),
        "status": "incomplete" if cut_off else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "output": _items(completion),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answered,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + answered,
        },
    }


def _begun(completion: ChatCompletion) -> dict[str, Any]:
    """An answer before anything is said."""
    return {
        "id": completion.call_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": completion.model,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": [],
        "parallel_tool_calls": not completion.one_call,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _items(completion: ChatCompletion) -> list[dict[str, Any]]:
    (choice,) = completion.choices
    status = "incomplete" if choice.answer.cut_off else "completed"
    items: list[dict[str, Any]] = []
    if choice.text or not choice.tool_calls:
        items.append(
            {
                "id": f"msg-{completion.call_id}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [_text_part(choice.text)],
            }
        )
    items += [
        {
            "id": f"fc-{completion.call_id}-{number}",
            "type": "function_call",
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": arguments_text(call),
            "status": "completed",
        }
        for number, call in enumerate(choice.tool_calls)
    ]
    return items


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _stream(request: ChatRequest, completion: ChatCompletion) -> Iterator[bytes]:
    for number, content in enumerate(_events(completion)):
        yield event({**content, "sequence_number": number}, content["type"])


def _events(completion: ChatCompletion) -> Iterator[dict[str, Any]]:
    for name in ("created", "in_progress"):
        yield {"type": f"response.{name}", "response": _begun(completion)}
    for index, item in enumerate(_items(completion)):
        place = {"item_id": item["id"], "output_index": index}
        is_message = item["type"] == "message"
        nothing: dict[str, Any] = {"content": []} if is_message else {"arguments": ""}
        begun = {**item, **nothing, "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        yield from _message_events(item, place) if is_message else _call_events(item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    whole = _answer(completion)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _message_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,), place = item["content"], {**place, "content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": _text_part("")}
    yield {"type": "response.output_text.delta", **place, "delta": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _call_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    asked = {key: item[key] for key in ("name", "arguments")}
    yield {"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **place, **asked}


def _refused_stream(refused: RequestRefused) -> Iterator[bytes]:
    error = {"type": "error", "code": refused.code, "message": str(refused), "param": refused.param}
    yield event({**error, "sequence_number": 0}, "error")


RESPONSES = Api("responses", "/v1/responses", read_request, _answer, _stream, refusal, _refused_stream)
