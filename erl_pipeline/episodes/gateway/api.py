"""What the APIs of the gateway have in common: requests, answers and refusals, whichever of them an agent
speaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

from jinja2 import TemplateError
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from erl_pipeline.environments.messages import CalledTool, Message, ToolSchema, answer_message
from erl_pipeline.episodes.gateway.sequences import Answer
from storage.texts import StorableTexts, read_json


class RequestRefused(Exception):
    """A request that cannot be answered; `param` is the field because of which, if there is one.

    Clients repeat a request after 408, 409, 429 and 5xx; none of those would be answered otherwise.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.code, self.status = param, code, status

    @property
    def kind(self) -> str:
        """The type of error, as OpenAI and Anthropic name it."""
        return "invalid_request_error" if self.status == 400 else "permission_error"


def attempt_closed() -> RequestRefused:
    """The refusal of a call that belongs to no attempt under way."""
    return RequestRefused(
        "this key is not that of an attempt under way: the attempt has ended, or the agent does not send "
        "OPENAI_API_KEY",
        code="attempt_closed",
        status=403,
    )


def tools_refused() -> RequestRefused:
    """The refusal of tools that the policy cannot be told of, or cannot call."""
    return RequestRefused(
        "tools: the policy's chat template does not show tools and results, or does not write calls in a "
        "form that is read",
        "tools",
    )


@dataclass(frozen=True)
class ChatRequest:
    """What a request asks for. `stop`: texts that end an answer. `one_call`: an answer may call one tool
    only. `overridden`: fields that do not count."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    one_call: bool = False
    stream: bool = False
    with_usage: bool = False
    overridden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """One answer as clients read it, and how long the policy took for it."""

    answer: Answer
    engine_seconds: float

    @property
    def finish_reason(self) -> Literal["stop", "length", "tool_calls"]:
        if self.answer.cut_off:
            return "length"
        return "tool_calls" if self.tool_calls else "stop"

    @property
    def text(self) -> str:
        """What is said beside tool calls, without thoughts."""
        return answer_message(self.answer.turn)["content"]

    @property
    def tool_calls(self) -> Sequence[CalledTool]:
        return answer_message(self.answer.turn).get("tool_calls", [])


@dataclass(frozen=True)
class ChatCompletion:
    """The answer to a request; `prompt_tokens` is the length of what was sent to the engine. `one_call`: the
    request allowed one tool call only."""

    call_id: str
    model: str
    choices: Sequence[Choice]
    prompt_tokens: int
    one_call: bool = False

    @property
    def answered_tokens(self) -> int:
        return sum(choice.answer.tokens for choice in self.choices)


@dataclass(frozen=True)
class Api:
    """One API: its name, where it is, how a request is read, and how answers and refusals are written.

    `read` raises `RequestRefused` for whatever a request cannot hold. Streams are server-sent events; each
    answer is whole when it is sent, since its tool calls are read from all of its tokens.
    """

    name: str
    path: str
    read: Callable[[bytes], ChatRequest]
    answer: Callable[[ChatCompletion], dict[str, Any]]
    stream: Callable[[ChatRequest, ChatCompletion], Iterator[bytes]]
    refusal: Callable[[RequestRefused], dict[str, Any]]
    refused_stream: Callable[[RequestRefused], Iterator[bytes]]


def event(content: Mapping[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {json.dumps(content)}\n\n".encode()


T = TypeVar("T")

# Without `fail_fast` each wrong element of a list is an error with a text of its own, and those of one call
# can fill the memory.
Many = Annotated[list[T], Field(max_length=16_384, fail_fast=True)]
"""The messages of a request, or the parts of one."""

Tools = Annotated[list[T], Field(max_length=1024, fail_fast=True)]
StopTexts = Annotated[list[T], Field(max_length=64, fail_fast=True)]

_MOST_FIELDS = 256


class Strict(BaseModel):
    """A part of a request; it refuses fields that it does not know."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_many(cls, value: Any) -> Any:
        """Each unknown field is an error too."""
        if isinstance(value, dict) and len(value) > _MOST_FIELDS:
            raise PydanticCustomError("too_many_fields", f"it has more than {_MOST_FIELDS} fields")
        return value


class StrictOptions(Strict):
    """Fields of a request or its parts. One that is unknown and null asks for nothing: clients write such."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: each for key, each in value.items() if each is not None or key in cls.model_fields}


class Text(Protocol):
    """A part of a message that is a text."""

    text: str


def said(parts: Iterable[Text]) -> str:
    """What the parts of a message say together."""
    return "".join(part.text for part in parts)


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


OrText = BeforeValidator(_as_parts)
"""For parts of a message that may come as one text."""


def _storable_object(value: dict[str, Any]) -> dict[str, Any]:
    storable: dict[str, Any] = StorableTexts().value(read_json(json.dumps(value)))
    return storable


JsonObject = Annotated[dict[str, Any], AfterValidator(_storable_object)]
"""An object that becomes a part of messages, so that every table has to be able to hold it."""

StrictT = TypeVar("StrictT", bound=Strict)


def validated(model: type[StrictT], body: bytes) -> StrictT:
    """The request in a body. Raises `RequestRefused` that names the first field which is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            raise RequestRefused(f"{where} is not supported", where, "unsupported_parameter") from error
        if first["type"] == "union_tag_invalid":
            what = f"{where}: {first['ctx']['tag']!r} is not supported"
            raise RequestRefused(what, where, "unsupported_parameter") from error
        raise RequestRefused(f"{where or 'the body'}: {first['msg']}", where or None) from error


_UNKNOWN_WORD = "Missing [UNK] token"
"""Said by tokenizers of whole words, such as that of a tiny policy, of a word that they lack."""


@contextmanager
def tokenizing() -> Iterator[None]:
    """For a block that makes messages tokens, such as `AttemptSequences.place`: raises `RequestRefused` for
    messages that cannot become tokens."""
    try:
        yield
    except Exception as error:
        # Tokenizers raise the class itself, for a word that they lack; templates refuse an order of roles.
        if type(error) is not Exception and not isinstance(error, TemplateError):
            raise
        said = "a word is not in its vocabulary" if _UNKNOWN_WORD in str(error) else error
        raise RequestRefused(f"messages: the policy's tokenizer refuses them: {said}", "messages") from error


def given(request: Strict, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the fields that have a value."""
    return tuple(name for name in names if getattr(request, name) is not None)


def tool_schema(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSchema:
    """A tool as chat templates take it; what is not given is left out."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {
        "type": "function",
        "function": {key: value for key, value in function.items() if value is not None},
    }


def called_tool(call_id: str, name: str, arguments: Mapping[str, Any]) -> CalledTool:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def json_arguments(where: str, text: str) -> Mapping[str, Any]:
    """The arguments of a tool call. Raises `RequestRefused` where they are no JSON object."""
    try:
        arguments = StorableTexts().value(read_json(text or "{}"))
    except ValueError as error:
        raise RequestRefused(f"{where}: what its arguments hold {error}", where) from error
    if not isinstance(arguments, dict):
        raise RequestRefused(f"{where}: its arguments are no JSON object", where)
    return arguments


def arguments_text(call: CalledTool) -> str:
    """The arguments of a tool call as OpenAI's clients read them."""
    return json.dumps(call["function"]["arguments"], ensure_ascii=False)
