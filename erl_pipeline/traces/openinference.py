"""OpenInference's LLM spans, as Phoenix and its instrumentations write them: `llm.input_messages.0.…`.

A line is OTLP JSON, or a span of Phoenix with `context` and `attributes`, flattened or nested. The
conventions have no version of their own: mapping 1 is the specification of 2026.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from erl_pipeline.traces.calls import (
    Call,
    Envelope,
    Form,
    Refused,
    Said,
    answered_call,
    checked,
    parsed,
    require_finished,
    tool_use,
)
from erl_pipeline.traces.otlp import Span, plain, unread_spans
from storage.tables.row_links import shown

MAPPING = 1
_READ = re.compile(r"llm\.((input|output)_messages|tools|model_name|finish_reason)\b")
_LEGACY = ("llm.function_call", "llm.prompts", "llm.choices")
_MOST_NAMES = 32


class _Function(Form):
    name: str
    arguments: str = ""


class _ToolCall(Form):
    id: str | None = None
    function: _Function
    reasoning_signature: str | None = None


class _Called(Form):
    tool_call: _ToolCall


class _Part(Envelope):
    type: str
    text: str | None = None


class _Content(Form):
    message_content: _Part


class _Message(Form):
    role: str
    content: str | None = None
    contents: tuple[_Content, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[_Called, ...] = ()


class _Holder(Form):
    message: _Message


class _Schema(Envelope):
    json_schema: str


class _Tool(Form):
    tool: _Schema


class _Llm(Envelope):
    input_messages: tuple[_Holder, ...] = ()
    output_messages: tuple[_Holder, ...] = ()
    tools: tuple[_Tool, ...] = ()
    model_name: str | None = None
    finish_reason: str | None = None


def parts(record: Any) -> Iterator[tuple[str, Any]]:
    """The spans of a line and their places in it."""
    if isinstance(record, Mapping) and not {"resourceSpans", "resource_spans"} & record.keys():
        yield "", record
    else:
        yield from unread_spans(record)


def read(part: Any, _place: str) -> Iterator[Call]:
    """The call of a span; nothing for spans that call no model. Raises Refused."""
    if isinstance(part, tuple):
        span = checked(Span, part[1], "span")
        flat = dict(_flat(plain(span.attributes)))
        trace_id, span_id = span.trace_id, span.span_id
    else:
        own = {key.removeprefix("attributes."): value for key, value in _flat(part)}
        failed = own.get("status_code") == "ERROR"
        span = checked(Span, {"status": {"code": 2 if failed else 0}}, "status_code")
        flat = {"openinference.span.kind": own.get("span_kind"), **own}
        trace_id, span_id = (str(own.get(f"context.{name}") or "") for name in ("trace_id", "span_id"))
    if flat.get("openinference.span.kind") != "LLM":
        return
    span.require_whole()
    legacy = next((key for key in flat if key.startswith(_LEGACY)), None)
    if legacy is not None:
        raise Refused(legacy, "is of completions or of former function calls, which are not read")
    yield _call(trace_id, span_id, str(flat.get("session.id") or trace_id), _nested(flat))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Nested objects and lists as dotted keys, as OpenInference flattens them."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _flat(each, f"{path}.{number}")
    elif value is not None:
        yield path, value


def _nested(flat: Mapping[str, Any]) -> _Llm:
    """The attributes that are read, as objects and lists again. Raises Refused where they contradict each
    other or an element of a list is missing."""
    root: dict[str, Any] = {}
    for key, value in flat.items():
        if not _READ.match(key):
            continue
        *path, last = key.split(".")
        inner: Any = root
        for name in path[:_MOST_NAMES]:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or last in inner or len(path) > _MOST_NAMES:
            raise Refused(key[:200], "contradicts another attribute, or is nested too deeply")
        inner[last] = value
    return checked(_Llm, _with_lists(root.get("llm", {}), "llm"), "llm")


def _with_lists(value: Any, field: str) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _with_lists(each, f"{field}.{key}") for key, each in value.items()}
    if not inner or not all(key.isdecimal() for key in inner):
        return inner
    lost = next((number for number in range(len(inner)) if str(number) not in inner), None)
    if lost is not None:
        raise Refused(f"{field}.{lost}", "is missing, and a later one is there")
    return [inner[str(number)] for number in range(len(inner))]


def _call(trace_id: str, span_id: str, session: str, llm: _Llm) -> Call:
    if not llm.input_messages or not llm.output_messages:
        name = "output_messages" if llm.input_messages else "input_messages"
        raise Refused(f"llm.{name}", "is missing; content was not recorded")
    require_finished(llm.finish_reason, "llm.finish_reason")
    asked, answered = (
        [_said(each.message, f"llm.{name}.{number}.message") for number, each in enumerate(holders)]
        for name, holders in (
            ("input_messages", llm.input_messages),
            ("output_messages", llm.output_messages),
        )
    )
    tools = [parsed(each.tool.json_schema, f"llm.tools.{number}") for number, each in enumerate(llm.tools)]
    return answered_call(
        asked,
        answered,
        tools,
        field="llm.output_messages",
        conversation=session,
        trace_id=trace_id,
        span_id=span_id,
        model=llm.model_name,
    )


def _said(message: _Message, field: str) -> Said:
    texts = [] if message.content is None else [message.content]
    for number, each in enumerate(message.contents):
        part = each.message_content
        if part.type == "text" and part.text is not None:
            texts.append(part.text)
        elif part.type != "reasoning":
            name = f"{field}.contents.{number}.message_content.type"
            raise Refused(name, f"is {shown(part.type)}; only text and reasoning are read")
    calls = [
        tool_use(call.function.name, call.function.arguments, call.id, f"{field}.tool_calls.{number}")
        for number, call in enumerate(each.tool_call for each in message.tool_calls)
    ]
    return Said(field, message.role, "\n".join(texts), tuple(calls), message.tool_call_id)
