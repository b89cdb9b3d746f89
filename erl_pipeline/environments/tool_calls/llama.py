"""The form of Llama 3.1 to 3.3: a turn that begins with `{"name": "search", "parameters": {...}}`. Further
calls follow behind a semicolon.

An answer may be JSON too. So without `<|python_tag|>` before it, an object is a call only if its name is that
of an offered tool.
"""

import re
from collections.abc import Sequence
from typing import Any

from erl_pipeline.environments.tool_calls.form import Called, CallForm, FoundCall, Tools, called_by
from storage.texts import StorableTexts, read_json_at

_TAG = "<|python_tag|>"
_BEFORE = re.compile(rf"\s*({re.escape(_TAG)})?\s*")
_NEXT = re.compile(r"\s*;\s*(?=\S)")
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')


def _find(text: str, start: int, tools: Tools, texts: StorableTexts) -> Sequence[FoundCall]:
    before = _BEFORE.match(text, start)
    assert before is not None
    if not before[1] and not _is_meant(text, before.end(), tools):
        return []
    found = []
    while before is not None:
        found.append(_call_at(text, before.start(), before.end(), texts))
        before = _NEXT.match(text, found[-1].end)
    return found


def _is_meant(text: str, place: int, tools: Tools) -> bool:
    """Whether the object at a place is meant as a call, also where it cannot be read."""
    if not text.startswith("{", place):
        return False
    try:
        record, _ = read_json_at(text, place)
        name = record.get("name")
    except ValueError:
        named = _NAME.search(text, place)
        name = named and named[1]
    return any(name == tool["function"]["name"] for tool in tools)


def _call_at(text: str, begin: int, place: int, texts: StorableTexts) -> FoundCall:
    try:
        record, end = read_json_at(text, place)
        return FoundCall(begin, end, _called(texts.value(record)))
    except ValueError as error:
        # Where it ends is not known.
        return FoundCall(begin, len(text), Called(problem=f"the call {error}"))


def _called(record: Any) -> Called:
    # vLLM takes both, and some of these models write the other one.
    keys = [key for key in ("arguments", "parameters") if isinstance(record, dict) and key in record]
    called = called_by(record, *keys[:1])
    return called if keys or called.problem else Called(called.name, problem='the call has no "parameters"')


LLAMA = CallForm((_TAG,), _find)
