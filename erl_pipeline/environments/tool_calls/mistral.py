"""Mistral's forms: `[TOOL_CALLS][{"name": "search", "arguments": {...}}]` of the older models, and
`[TOOL_CALLS]search[ARGS]{...}` of the newer ones, also without `[ARGS]`.

A list is read call by call, and may lack its end: so an answer can be cut behind its first call. An id that
the policy writes beside a call does not count.
"""

import hashlib
import re
from collections.abc import Sequence

from erl_pipeline.environments.tool_calls.form import Called, CallForm, FoundCall, Tools, called_by
from storage.texts import StorableTexts, read_json_at

_MARKER = re.compile(r"(?:\[TOOL_CALLS\]\s*)+")
_LIST = re.compile(r"\[\s*")
_COMMA, _LIST_END = re.compile(r"\s*,\s*"), re.compile(r"(?:\s*\])?")
_NAME = re.compile(r"([^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*[A-Za-z0-9]*\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_ID = re.compile(r"[A-Za-z0-9]{9}")


def _find(text: str, start: int, tools: Tools, texts: StorableTexts) -> Sequence[FoundCall]:
    found: list[FoundCall] = []
    marker = _MARKER.search(text, start)
    while marker is not None:
        begins = _LIST.match(text, marker.end())
        if begins is None:
            found.append(_named(text, marker, texts))
        else:
            found += _listed(text, marker.start(), begins.end(), texts)
        marker = _MARKER.search(text, found[-1].end)
    return found


def _named(text: str, marker: re.Match[str], texts: StorableTexts) -> FoundCall:
    named = _NAME.match(text, marker.end())
    if named is None:
        return _unread(text, marker.start(), marker.end(), "is no name with a JSON object behind it")
    try:
        arguments, end = read_json_at(text, named.end())
        return FoundCall(marker.start(), end, Called(named[1], texts.value(arguments)))
    except ValueError as error:
        return _unread(text, marker.start(), marker.end(), str(error))


def _listed(text: str, begin: int, place: int, texts: StorableTexts) -> list[FoundCall]:
    found: list[FoundCall] = []
    while True:
        try:
            record, end = read_json_at(text, place)
            called = called_by(texts.value(record))
        except ValueError as error:
            return [*found, _unread(text, begin, place, str(error))]
        comma = _COMMA.match(text, end)
        ended = comma or _LIST_END.match(text, end)
        assert ended is not None
        found.append(FoundCall(begin, end if comma else ended.end(), called))
        if comma is None:
            return found
        begin, place = end, comma.end()


def _unread(text: str, begin: int, place: int, problem: str) -> FoundCall:
    """A call that cannot be read, up to the next one."""
    after = _MARKER.search(text, place)
    end = len(text) if after is None else after.start()
    return FoundCall(begin, end, Called(problem=f"the call {problem}"))


def _shown_id(call_id: str) -> str:
    # The templates refuse all other ids; ours are such up to a conversation's thousandth turn.
    return call_id if _ID.fullmatch(call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


MISTRAL = CallForm(("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"), _find, _shown_id)
