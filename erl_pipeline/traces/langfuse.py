"""Langfuse's observations and scores, as JSON lines of its API or of its export to a bucket.

Lines of both kinds are in one file, in any order: an observation has a `type`, a score a data type.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from erl_pipeline.traces.calls import Call, Envelope, Refused, Said, Score, answered_call, checked, parsed
from erl_pipeline.traces.openai import said
from storage.tables.row_links import shown

MAPPING = 1
_NUMERIC = ("NUMERIC", "BOOLEAN")
_NUMBERS = (*_NUMERIC, "CATEGORICAL")


class _Record(Envelope):
    # The export to a bucket has names with underscores, and the API lowerCamelCase.
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class _Observation(_Record):
    id: str
    trace_id: str
    type: str
    session_id: str | None = None
    level: str | None = None
    provided_model_name: str | None = None
    model: str | None = None
    input: Any = None
    output: Any = None
    tool_definitions: Any = None


class _Score(_Record):
    name: str
    data_type: str
    value: Any = None
    comment: str | None = None
    trace_id: str | None = None
    observation_id: str | None = None
    session_id: str | None = None


def read(record: Any, _place: str) -> Iterator[Call | Score]:
    """The call or the score of a line; nothing for observations that call no model. Raises Refused."""
    if isinstance(record, Mapping) and "type" not in record:
        score = checked(_Score, record, "score")
        target = score.observation_id or score.trace_id or score.session_id or ""
        if score.data_type in _NUMERIC and not isinstance(score.value, int | float | None):
            raise Refused("value", f"is {shown(score.value)}; allowed is a number")
        number = score.value if score.data_type in _NUMBERS and isinstance(score.value, int | float) else None
        value = None if number is None else float(number)
        yield Score(score.name, value, score.comment, target, score.trace_id or "")
        return
    observation = checked(_Observation, record, "observation")
    if observation.type == "GENERATION":
        yield _call(observation)


def _call(observation: _Observation) -> Call:
    if observation.level == "ERROR":
        raise Refused("level", "is ERROR: the answer is missing")
    asked, tools = _json(observation.input, "input"), None
    if isinstance(asked, Mapping):
        if "messages" not in asked or asked.keys() & {"functions", "system", "prompt"}:
            raise Refused("input", f"has {shown(sorted(map(str, asked)))}; allowed are messages and tools")
        asked, tools = asked["messages"], asked.get("tools")
    if observation.tool_definitions and not tools:
        raise Refused("tool_definitions", "is there, and input has no tools")
    return answered_call(
        _turns(asked, "input", "user"),
        _turns(_json(observation.output, "output"), "output", "assistant"),
        tools,
        field="output",
        conversation=observation.session_id or observation.trace_id,
        trace_id=observation.trace_id,
        span_id=observation.id,
        model=observation.provided_model_name or observation.model,
    )


_MESSAGES = re.compile(r"\s*[\[{].*\"(role|content|messages|tool_calls)\"\s*:", re.S)


def _json(value: Any, field: str) -> Any:
    """An input or output: exports hold messages as JSON text, and a text as it is. An output that is JSON
    without a role is what the model said."""
    if not isinstance(value, str) or not _MESSAGES.match(value):
        return value
    found = parsed(value, field)
    first = found[0] if isinstance(found, list) and found else found
    is_message = isinstance(first, Mapping) and "role" in first
    return found if is_message or field == "input" else value


def _turns(value: Any, field: str, role: str) -> list[Said]:
    """A text, a message or a list of messages."""
    if value is None or value == "":
        raise Refused(field, "is missing; content was not recorded")
    if isinstance(value, str):
        return [Said(field, role, value)]
    messages = value if isinstance(value, list) else [value]
    return [said(each, f"{field}.{number}") for number, each in enumerate(messages)]
