"""OpenAI's JSON lines: the fine-tuning format, and logs of chat completions: requests with their responses.

A line of a log is `{"request": {…}, "response": {…}}`, each as it was sent, or under `body` as in batches.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from erl_pipeline.traces.calls import (
    Call,
    Envelope,
    Form,
    Refused,
    Said,
    answered_call,
    checked,
    conversation_of,
    require_finished,
    tool_use,
    tools_text,
    without_empty,
)
from storage.tables.row_links import shown

MAPPING = 2


class _Function(Form):
    name: str
    arguments: Any = None


class _ToolCall(Form):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: _Function


class _Message(Form):
    role: str
    content: Any = None
    name: str | None = None
    tool_calls: tuple[_ToolCall, ...] = ()
    tool_call_id: str | None = None
    weight: Literal[0, 1] = 1
    """Of an assistant's message in the fine-tuning format: whether it is trained."""
    reasoning: Any = None
    reasoning_content: Any = None


class _Example(Form):
    messages: list[Any]
    tools: list[Any] | None = None
    parallel_tool_calls: bool | None = None


class _Request(Envelope):
    messages: list[Any]
    tools: list[Any] | None = None
    model: str | None = None
    functions: None = None


class _Choice(Envelope):
    message: Any
    finish_reason: str | None = None


class _Response(Envelope):
    id: str = ""
    model: str | None = None
    choices: list[_Choice]


def read(record: Any, place: str) -> Iterator[Call]:
    """The conversation, or the call, of a line. Raises Refused."""
    if not isinstance(record, Mapping):
        raise Refused("record", f"is {shown(record)}; allowed is an object")
    yield _logged(record) if "request" in record or "response" in record else _example(record, place)


def _example(record: Mapping[str, Any], place: str) -> Call:
    example = checked(_Example, without_empty(record), "")
    left_out = [isinstance(each, Mapping) and each.get("weight") == 0 for each in example.messages]
    turns = [said(each, f"messages.{number}") for number, each in enumerate(example.messages)]
    learned = [
        number for number, each in enumerate(turns) if each.role == "assistant" and not left_out[number]
    ]
    if not learned:
        raise Refused("messages", "the answer is missing: no message is the assistant's, with weight 1")
    name = place.replace(" ", "-")
    return Call(
        conversation_of(turns[: learned[-1] + 1]),
        tuple(learned),
        tools_text(example.tools, "tools"),
        conversation=name,
        trace_id=name,
        span_id="",
        model=None,
    )


def _logged(record: Mapping[str, Any]) -> Call:
    request = checked(_Request, _body(record, "request"), "request")
    response = checked(_Response, _body(record, "response"), "response")
    for choice in response.choices:
        require_finished(choice.finish_reason, "response.choices.0.finish_reason")
    return answered_call(
        [said(each, f"request.messages.{number}") for number, each in enumerate(request.messages)],
        [said(each.message, f"response.choices.{number}") for number, each in enumerate(response.choices)],
        request.tools,
        field="response.choices",
        conversation="",
        trace_id=response.id,
        span_id=response.id,
        model=response.model or request.model,
    )


def _body(record: Mapping[str, Any], name: str) -> Any:
    value = record.get(name)
    if not isinstance(value, Mapping):
        raise Refused(name, "is missing; a line of a log has a request and a response")
    return value.get("body") or value


def said(value: Any, field: str) -> Said:
    """What a message of chat completions says. Reasoning is left out, as agents do. Raises Refused for
    pictures and sound, and for keys that are not known and say something."""
    message = checked(_Message, without_empty(value), field)
    calls = [
        tool_use(each.function.name, each.function.arguments, each.id, f"{field}.tool_calls.{number}")
        for number, each in enumerate(message.tool_calls)
    ]
    texts = _texts(message.content, f"{field}.content")
    return Said(field, message.role, "\n".join(texts), tuple(calls), message.tool_call_id)


def _texts(content: Any, field: str) -> Iterator[str]:
    if content is None:
        return
    if isinstance(content, str):
        yield content
        return
    if not isinstance(content, list):
        raise Refused(field, f"is {shown(content)}; allowed is text, or a list of parts")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind != "text" or not isinstance(part.get("text"), str):
            raise Refused(f"{field}.{number}.type", f"is {shown(kind)}; pictures and sound are not read")
        yield part["text"]
