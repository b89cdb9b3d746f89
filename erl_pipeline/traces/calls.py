"""Calls of a model as traces record them, whatever their format, and what makes a call unusable."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from erl_pipeline.environments.messages import MARKERS, Message
from storage.tables.row_links import shown
from storage.texts import StorableTexts, read_json, storable


class Refused(ValueError):
    """What a file holds in a place cannot be used. `field`: the name that it has there."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")


class Form(BaseModel):
    """A part of a record that says what was said: a key that is not known may change its meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Envelope(BaseModel):
    """A part of a record around it: other keys are of no interest."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True)
class Call:
    """One call of a model: what it was sent, and last what it answered. Or a whole conversation, of a file
    that does not record calls."""

    messages: tuple[Message, ...]
    answers: tuple[int, ...]
    """Places of the model's answers in `messages`, the last of which is the last message."""
    tools: str
    """The tools that it was told of, as JSON."""
    conversation: str
    """Calls of one conversation repeat its history; "" where the file does not name conversations."""
    trace_id: str
    span_id: str
    model: str | None
    score: float | None = None
    comments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """A number, a comment or both that someone gave to a call, a trace or a conversation."""

    name: str
    value: float | None
    comment: str | None
    target: str
    """The id of what it is about."""
    trace_id: str = ""
    """Of the trace that it is in: it is about all of that where the target is no call, such as a span around
    several calls."""


@dataclass(frozen=True)
class ToolUse:
    """A tool call in an assistant's turn."""

    name: str
    arguments: Mapping[str, Any]
    call_id: str | None


@dataclass(frozen=True)
class Said:
    """A message before it is checked. `field` names its place for messages to the user."""

    field: str
    role: str
    text: str
    calls: tuple[ToolUse, ...] = ()
    answers_call: str | None = None
    """In a tool's message: the id of the call whose result it is, if it names one."""


FormT = TypeVar("FormT", bound=BaseModel)


def checked(form: type[FormT], value: Any, field: str) -> FormT:
    """The value in this form. Raises Refused, which names the first field that is wrong."""
    try:
        return form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part)[:60] for part in (field, *first["loc"]) if part != "")
        raise Refused(place or "record", first["msg"]) from error


def parsed(text: str, field: str) -> Any:
    """The value of a JSON text. Raises Refused for one that is cut, is no JSON or is nested too deeply."""
    try:
        value = read_json(text)
        StorableTexts().value(value)
    except ValueError as error:
        raise Refused(field, f"is cut or malformed: it {error}") from error
    return value


def without_empty(value: Any) -> Any:
    """A JSON object without the keys that say nothing; any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    return {key: each for key, each in value.items() if each not in (None, [], {}, "")}


def tool_use(name: str | None, arguments: Any, call_id: str | None, field: str) -> ToolUse:
    """A tool call whose arguments are an object, or its JSON text, or nothing."""
    if not name:
        raise Refused(field, "the call names no tool")
    if isinstance(arguments, str):
        require_whole(arguments, field)
        arguments = parsed(arguments, field) if arguments.strip() else {}
    if not isinstance(arguments, Mapping | None):
        raise Refused(field, f"is {shown(arguments)}; allowed is an object")
    return ToolUse(name, arguments or {}, call_id)


def tools_text(definitions: Any, field: str) -> str:
    """Definitions of tools as the JSON that chat templates take: both `{"type": "function", "function": {…}}`
    and the flat form of telemetry are allowed. Raises Refused for tools of other kinds."""
    if definitions is None:
        return "[]"
    if not isinstance(definitions, list):
        raise Refused(field, f"is {shown(definitions)}; allowed is a list")
    tools = []
    for place, each in enumerate(definitions):
        name = f"{field}.{place}"
        if not isinstance(each, Mapping) or each.get("type", "function") != "function":
            raise Refused(name, "is no function; tools of providers and custom tools are not read")
        function = each.get("function") or {key: part for key, part in each.items() if key != "type"}
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refused(name, "has no name")
        tools.append({"type": "function", "function": dict(function)})
    text = json.dumps(tools, ensure_ascii=False)
    require_whole(text, field)
    return text


def answered_call(
    asked: Sequence[Said],
    answers: Sequence[Said],
    tools: Any,
    *,
    field: str,
    conversation: str,
    trace_id: str,
    span_id: str,
    model: str | None,
) -> Call:
    """The call that sent `asked` and got one answer, which `field` holds; `tools` are definitions.

    Raises what `conversation_of` and `tools_text` raise, and Refused for several answers or none."""
    if len(answers) != 1:
        raise Refused(field, f"has {len(answers)} answers; allowed is one")
    if answers[0].role != "assistant":
        raise Refused(
            f"{answers[0].field}.role", f"is {shown(answers[0].role)}; an answer is the assistant's"
        )
    require_whole(" ".join((conversation, trace_id, span_id)), "ids")
    messages = conversation_of([*asked, *answers])
    named = tools_text(tools, "tools")
    return Call(messages, (len(messages) - 1,), named, conversation, trace_id, span_id, model)


_ROLES = {"developer": "system", **{role: role for role in ("system", "user", "assistant", "tool")}}


def conversation_of(turns: Sequence[Said]) -> tuple[Message, ...]:
    """The messages of a conversation. Calls of tools become text in Hermes' form, which this project reads
    (`erl_pipeline.environments.messages`).

    Raises Refused for an unknown role, a first message of the assistant, an empty answer, a text that is cut
    or redacted, and calls of tools without results before the last turn.
    """
    if turns and turns[0].role == "assistant":
        raise Refused(turns[0].field, "is the assistant's; a conversation begins with another message")
    _require_results(turns)
    return tuple(_message(said) for said in _by_their_calls(turns))


def _message(said: Said) -> Message:
    role = _ROLES.get(said.role)
    if role is None:
        raise Refused(f"{said.field}.role", f"is {shown(said.role)}; allowed are {', '.join(_ROLES)}")
    if not said.text.strip() and not said.calls and role != "tool":
        missing = "the answer is missing" if role == "assistant" else "is empty"
        raise Refused(f"{said.field}.content", missing)
    if said.calls and role != "assistant":
        raise Refused(f"{said.field}.tool_calls", f"are {said.role}'s; only the assistant calls tools")
    begin, end = MARKERS
    calls = [
        f"{begin}\n{json.dumps({'name': each.name, 'arguments': each.arguments}, ensure_ascii=False)}\n{end}"
        for each in said.calls
    ]
    content = "\n".join([said.text, *calls] if said.text else calls)
    require_whole(content, f"{said.field}.content")
    return {"role": role, "content": content}  # type: ignore[typeddict-item]  # one of _ROLES


def _require_results(turns: Sequence[Said]) -> None:
    """Raise Refused for calls without results before the last turn, and for results of no call."""
    awaited: list[str | None] = []
    asked = ""
    for said in turns:
        if said.role == "tool":
            named = said.answers_call
            if not awaited:
                raise Refused(said.field, "is the result of no tool call before it")
            if named is not None and None not in awaited and named not in awaited:
                raise Refused(said.field, f"is the result of {shown(named)}, which no call before it has")
            awaited.remove(named if named in awaited else awaited[0])
            continue
        if awaited:
            raise Refused(asked, f"{len(awaited)} of its tool calls have no result")
        asked, awaited = f"{said.field}.tool_calls", [each.call_id for each in said.calls]


def _by_their_calls(turns: Sequence[Said]) -> list[Said]:
    """The turns, with the results of several calls in the order of these, since messages do not name them."""
    ordered: list[Said] = []
    places: dict[str | None, int] = {}
    for is_result, group in groupby(turns, key=lambda said: said.role == "tool"):
        said = list(group)
        if is_result and all(each.answers_call in places for each in said):
            said.sort(key=lambda each: places[each.answers_call])
        ordered += said
        places = {
            each.call_id: place for place, each in enumerate(said[-1].calls) if each.call_id is not None
        }
    return ordered


_MARKED = re.compile(r"[\[<(][\s.…]*truncated\b[^\])>]{0,60}[\])>]\W*\Z|\bchar(acter)?s truncated\W*\Z", re.I)
_REDACTED = re.compile(r"__REDACTED__|[\[<]\s*(\w+[_ ])?(redacted|masked)[^\]>\n]{0,60}[\]>]", re.I)
_ELLIPSES = ("...", "…")


def require_whole(text: str, field: str) -> None:
    """Raise Refused for a text that an exporter has cut or redacted.

    It counts as cut where its end says so, or is an ellipsis at a length limit: 64 or more characters or
    bytes, a power of two or a multiple of 500, with or without the ellipsis. Half of a character (an unpaired
    surrogate) is what a cut in UTF-16 leaves.
    """
    if storable(text) != text:
        raise Refused(field, "holds half of a character, as a cut leaves it")
    if _REDACTED.search(text):
        raise Refused(field, "is redacted")
    ellipsis = next((each for each in _ELLIPSES if text.endswith(each)), "")
    ends = (text, text.removesuffix(ellipsis)) if ellipsis else ()
    if _MARKED.search(text) or any(_is_limit(len(each)) or _is_limit(len(each.encode())) for each in ends):
        raise Refused(field, f"is cut at a length limit: it ends with {shown(text[-20:])}")


def _is_limit(length: int) -> bool:
    return length >= 64 and (length & (length - 1) == 0 or length % 500 == 0)


_FINISHED = {"stop", "tool_call", "tool_calls", "tool_use", "end_turn", "stop_sequence", "eos"}
_AT_LIMIT = {"length", "max_tokens", "max_output_tokens", "model_length"}


def require_finished(reason: Any, field: str) -> None:
    """Raise Refused for an answer that did not come to its end; without a reason nothing is known."""
    named = str(reason).lower()
    if reason is None or named in _FINISHED:
        return
    if named in _AT_LIMIT:
        raise Refused(field, f"is {shown(reason)}: the answer is cut at the limit of its tokens")
    raise Refused(field, f"is {shown(reason)}: the answer is not a whole one, or the reason is not known")
