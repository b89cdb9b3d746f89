"""Checks of one row of imported trajectories: the types and the meaning of its columns."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from storage.tables.trajectories import LOGPROB_TOLERANCE, TRAJECTORY_SCHEMA, is_metrics
from storage.texts import StorableTexts, read_json

_FLOAT32_MAX = 3.4028235e38
_RANGES = {pa.int8(): 2**7, pa.int32(): 2**31, pa.int64(): 2**63}
_NOT_NEGATIVE = ("revision_index", "sample_index")
_NOT_EMPTY = ("trajectory_id", "episode_id", "group_id", "task_id", "role")

Row = dict[str, Any]


def row_problems(row: Row) -> Iterator[tuple[str, str]]:
    """The problems of a row, as (field, problem). Meanings are checked only if all types are right."""
    wrong = [
        (column.name, problem)
        for column in TRAJECTORY_SCHEMA
        if (problem := _value_problem(row.get(column.name), column)) is not None
    ]
    yield from wrong or _meaning_problems(row)


def _value_problem(value: Any, column: pa.Field) -> str | None:
    if value is None:
        return None if column.nullable else "is null; a value is needed"
    if pa.types.is_list(column.type):
        if not isinstance(value, list):
            return f"is {shown(value)}; allowed is a list"
        element = column.type.value_type
        for index, each in enumerate(value):
            problem = _scalar_problem(each, element)
            if problem is not None:
                return f"value {index} {problem}"
        return None
    return _scalar_problem(value, column.type)


def _scalar_problem(value: Any, kind: pa.DataType) -> str | None:
    if pa.types.is_integer(kind):
        if type(value) is not int:
            return f"is {shown(value)}; allowed is a whole number"
        bound = _RANGES[kind]
        return None if -bound <= value < bound else f"is {shown(value)}; it does not fit in {kind}"
    if pa.types.is_floating(kind):
        if type(value) not in (int, float):
            return f"is {shown(value)}; allowed is a number"
        finite = math.isfinite(value) if type(value) is float else True
        return None if finite and abs(value) <= _FLOAT32_MAX else f"is {shown(value)}; it must be finite"
    if pa.types.is_boolean(kind):
        return None if type(value) is bool else f"is {shown(value)}; allowed is true or false"
    if type(value) is not str:
        return f"is {shown(value)}; allowed is text"
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a character, which is no text"
    return None


def _meaning_problems(row: Row) -> Iterator[tuple[str, str]]:
    tokens = len(row["response_token_ids"])
    for name in ("response_mask", "behaviour_logprobs"):
        if len(row[name]) != tokens:
            yield name, f"has {len(row[name])} values and response_token_ids {tokens}; they must be equal"
    for index, bit in enumerate(row["response_mask"]):
        if bit not in (0, 1):
            yield "response_mask", f"value {index} is {bit}; allowed are 0 and 1"
            break
    for index, logprob in enumerate(row["behaviour_logprobs"]):
        if logprob > LOGPROB_TOLERANCE:
            yield "behaviour_logprobs", f"value {index} is {logprob}; a log-probability is at most 0"
            break
    if tokens and not row["prompt_token_ids"]:
        yield "prompt_token_ids", "is empty; the first response token needs a predecessor"
    for name in ("prompt_token_ids", "response_token_ids"):
        if any(token < 0 for token in row[name]):
            yield name, "has a negative token id"
    if row["metrics"] and not is_metrics(row["metrics"]):
        yield "metrics", "must be a JSON object, name -> finite number"
    if row["temperature"] <= 0:
        yield "temperature", f"is {row['temperature']}; tokens that are trained were sampled, at more than 0"
    if row["iteration"] < 1:
        yield "iteration", f"is {row['iteration']}; iterations are counted from 1"
    for name in _NOT_NEGATIVE:
        if row[name] < 0:
            yield name, f"is {row[name]}; it is counted from 0"
    for name in _NOT_EMPTY:
        if not row[name]:
            yield name, "is empty"
    if not _is_dialogue(row["messages"]):
        yield "messages", 'must be JSON: a list of objects with "role" and "content", both text'
    if not isinstance(_parsed(row["task_payload"], json.loads), dict):
        yield "task_payload", "must be a JSON object"


def _is_dialogue(text: str) -> bool:
    # Messages are searched, by a reader that takes no other JSON.
    messages = _parsed(text, read_json)
    return isinstance(messages, list) and all(
        isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)
        for each in messages
    )


def _parsed(text: str, read: Callable[[str], Any]) -> Any:
    try:
        return StorableTexts().value(read(text))
    except (ValueError, RecursionError):
        return None


def shown(value: Any) -> str:
    """A value as a message shows it: at most 60 characters."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
