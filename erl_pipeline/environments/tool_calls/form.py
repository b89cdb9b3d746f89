"""What a form of tool calls is."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from storage.texts import StorableTexts

Tools = Sequence[Mapping[str, Any]]
"""The offered tools, as chat templates take them."""


class Called(NamedTuple):
    """What a call says. `problem` is what is wrong with an ill-formed one, else None."""

    name: str = ""
    arguments: Mapping[str, Any] = {}
    problem: str | None = None


class FoundCall(NamedTuple):
    """A call in a text, from `begin` to `end` in characters, with what belongs to it alone, as its marker."""

    begin: int
    end: int
    called: Called


Find = Callable[[str, int, Tools, StorableTexts], Sequence[FoundCall]]
"""The calls in a text from a place on, in their order. A well-formed one stays found whatever is written
behind it, unless it stands in one that only this completes."""


@dataclass(frozen=True)
class CallForm:
    """One way to write calls. `markers` are texts of it for which a tokenizer may have a special token, which
    is then part of what is said. `shown_id`: the id of a call as the chat templates take it; None where they
    take any."""

    markers: tuple[str, ...]
    find: Find
    shown_id: Callable[[str], str] | None = None


def called_by(record: Any, key: str = "arguments") -> Called:
    """The call that a JSON object is, with its arguments under `key`; none are an empty object."""
    if not isinstance(record, dict) or not isinstance(record.get("name"), str) or not record["name"]:
        return Called(problem='the call is no JSON object with a "name"')
    name, arguments = record["name"], record.get(key, {})
    if not isinstance(arguments, dict):
        return Called(name, problem=f'"{key}" is no JSON object')
    return Called(name, arguments)


TAGS = ("<tool_call>", "</tool_call>")
_TAGGED = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


def between_tags(read: Callable[[str, Tools, StorableTexts], Called]) -> Find:
    """Finds calls between `<tool_call>` and `</tool_call>`; `read` reads what is in between."""

    def find(text: str, start: int, tools: Tools, texts: StorableTexts) -> Sequence[FoundCall]:
        return [
            FoundCall(
                *match.span(),
                read(match[1], tools, texts) if match[2] else Called(problem="the call has no </tool_call>"),
            )
            for match in _TAGGED.finditer(text, start)
        ]

    return find
