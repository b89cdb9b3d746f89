"""OpenTelemetry's GenAI spans, in the semantic conventions of versions 1.37 to 1.42.

Content is in attributes of the span, or of the event `gen_ai.client.inference.operation.details` in the span
or in a log record about it. The event `gen_ai.evaluation.result` is read as a score.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from erl_pipeline.traces.calls import (
    Call,
    Envelope,
    Form,
    Refused,
    Said,
    Score,
    ToolUse,
    answered_call,
    checked,
    parsed,
    require_finished,
    tool_use,
    without_empty,
)
from erl_pipeline.traces.otlp import Span, plain
from storage.tables.row_links import shown

MAPPING = 1
_VERSION = re.compile(r"https://opentelemetry\.io/schemas/(gen-ai/)?1\.(\d{1,4})\.\d+\Z")
_KNOWN = {*((None, str(minor)) for minor in range(37, 42)), ("gen-ai/", "42")}
"""Since 1.42 the conventions have a repository, and a schema URL, of their own."""

_DETAILS, _EVALUATION = "gen_ai.client.inference.operation.details", "gen_ai.evaluation.result"
_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_TOOLS, _OPERATION, _TYPE = "gen_ai.tool.definitions", "gen_ai.operation.name", "gen_ai.output.type"
_READ = (_INPUT, _OUTPUT, _SYSTEM, _TYPE, "gen_ai.system")
_HARMLESS = re.compile(
    r"gen_ai\.(agent|conversation|data_source|evaluation|operation|prompt\.name|provider|request|response|"
    r"token|tool|usage|workflow)\b"
)
"""Attributes that do not change what the messages mean."""
_EARLIER = re.compile(r"gen_ai\.(prompt|completion|(system|user|assistant|tool)\.message|choice)\b(?!\.name)")


class _Part(Form):
    type: str
    content: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    response: Any = None
    result: Any = None  # the name of `response` in version 1.37


class _Message(Form):
    role: str
    parts: list[Any]
    name: str | None = None
    finish_reason: str | None = None


class _Evaluation(Envelope):
    name: str = Field(default="", alias="gen_ai.evaluation.name")
    value: float | None = Field(default=None, alias="gen_ai.evaluation.score.value", allow_inf_nan=False)
    comment: str | None = Field(default=None, alias="gen_ai.evaluation.explanation")


def read(part: tuple[str, Any], _place: str) -> Iterator[Call | Score]:
    """The call and the scores of a span; nothing for spans that call no model. Raises Refused."""
    url, value = part
    span = checked(Span, value, "span")
    events = [(each.name, plain(each.attributes)) for each in span.events]
    attributes = plain(span.attributes)
    if span.event_name:
        events, attributes = [(span.event_name, attributes)], {}
    for name, said in events:
        if name == _EVALUATION:
            score = checked(_Evaluation, said, _EVALUATION)
            target = span.span_id or span.trace_id
            yield Score(score.name, score.value, score.comment, target, span.trace_id)
        elif name == _DETAILS:
            attributes = {**said, **attributes}
    if _is_call(attributes):
        span.require_whole()
        _require_known(url, attributes)
        yield _call(span, attributes)


def _is_call(attributes: Mapping[str, Any]) -> bool:
    operation = attributes.get(_OPERATION)
    if operation == "text_completion":
        raise Refused(_OPERATION, "is text_completion, which has no messages")
    content = any(name == _INPUT or _EARLIER.match(name) for name in attributes)
    return operation in ("chat", "generate_content") or (operation is None and content)


def _require_known(url: str, attributes: Mapping[str, Any]) -> None:
    """Raise Refused for another version, and for what would change the meaning of the messages."""
    version = _VERSION.match(url)
    if url and (version is None or version.groups() not in _KNOWN):
        raise Refused("schemaUrl", f"is {shown(url)}; known are the versions 1.37 to 1.42")
    for name in attributes:
        if _EARLIER.match(name):
            raise Refused(name, "is of the conventions before 1.37")
        if name.startswith("gen_ai.") and name not in _READ and not _HARMLESS.match(name):
            raise Refused(name, "is no attribute that is known")
    if attributes.get(_TYPE, "text") not in ("text", "json"):
        raise Refused(_TYPE, f"is {shown(attributes[_TYPE])}; only text is read")
    if "error.type" in attributes:
        raise Refused("error.type", "the call failed: the answer is missing")


def _call(span: Span, attributes: Mapping[str, Any]) -> Call:
    turns = []
    if _SYSTEM in attributes:
        parts = [_part(each, _SYSTEM) for each in _list(attributes, _SYSTEM)]
        turns.append(Said(_SYSTEM, "system", "\n".join(each.content or "" for each in parts)))
    for number, value in enumerate(_list(attributes, _INPUT)):
        turns += _said(checked(_Message, value, f"{_INPUT}.{number}"), f"{_INPUT}.{number}")
    output = [checked(_Message, value, f"{_OUTPUT}.0") for value in _list(attributes, _OUTPUT)]
    reasons = attributes.get("gen_ai.response.finish_reasons")
    for reason in (*(each.finish_reason for each in output), *(reasons if isinstance(reasons, list) else ())):
        require_finished(reason, "gen_ai.response.finish_reasons")
    model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model")
    tools = attributes.get(_TOOLS)
    return answered_call(
        turns,
        [said for each in output for said in _said(each, f"{_OUTPUT}.0")],
        parsed(tools, _TOOLS) if isinstance(tools, str) else tools,
        field=_OUTPUT,
        conversation=str(attributes.get("gen_ai.conversation.id") or span.trace_id),
        trace_id=span.trace_id,
        span_id=span.span_id,
        model=None if model is None else str(model),
    )


def _list(attributes: Mapping[str, Any], name: str) -> list[Any]:
    """An attribute with messages or parts: structured, or as JSON text."""
    if name not in attributes:
        raise Refused(name, "is missing; content was not recorded")
    value = attributes[name]
    value = parsed(value, name) if isinstance(value, str) else value
    if not isinstance(value, list):
        raise Refused(name, f"is {shown(value)}; allowed is a list")
    return value


def _said(message: _Message, field: str) -> list[Said]:
    """What a message says: results of tools come first, each as a message of its own. Reasoning is left out,
    as agents do."""
    texts: list[str] = []
    calls: list[ToolUse] = []
    results: list[Said] = []
    for number, value in enumerate(message.parts):
        name = f"{field}.parts.{number}"
        part = _part(value, name)
        if part.type == "text":
            texts.append(part.content or "")
        elif part.type == "tool_call":
            calls.append(tool_use(part.name, part.arguments, part.id, f"{name}.arguments"))
        elif part.type == "tool_call_response":
            result = next((each for each in (part.response, part.result) if each is not None), "")
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            results.append(Said(name, "tool", text, answers_call=part.id))
    if results and not texts and not calls:
        return results
    return [*results, Said(field, message.role, "\n".join(texts), tuple(calls))]


def _part(value: Any, name: str) -> _Part:
    """A part of a message. Raises Refused for pictures, files and all else that is not known."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "reasoning":
        return _Part(type=kind)
    if kind not in ("text", "tool_call", "tool_call_response"):
        raise Refused(
            f"{name}.type", f"is {shown(kind)}; pictures, files and tools of providers are not read"
        )
    return checked(_Part, without_empty(value), name)
