"""The search tool, and what the policy asks for in a turn: by the chat template's calls, or in plain lines.

The plain protocol: a turn has a line `Search: what to look for` or a line `Answer: the answer`. The first of
them counts: what follows a search in the same turn was written before the search returned anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from erl_pipeline.environments.messages import AssistantTurn, ToolCall, ToolSchema

SEARCH = "search"
MAX_QUERY_CHARACTERS = 400
MAX_CALLS = 4
"""The most calls of one turn that are carried out."""

SEARCH_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": SEARCH,
        "description": "Search an encyclopedia. Returns the beginnings of the best pages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}

_SHOWN = 60
_SAID = r"(?:the )?(?:final )?answer(?: is)?"
_ANSWER = re.compile(rf"^[ \t*#>-]*{_SAID}[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_LINE = re.compile(rf"^[ \t*#>-]*(search|{_SAID})[ \t]*:(.*)$", re.IGNORECASE | re.MULTILINE)
_AROUND = " \t\r*"  # characters around words in Markdown


@dataclass(frozen=True)
class Search:
    """A search; `call` is the tool call that asked for it, None in the plain protocol."""

    query: str
    call: ToolCall | None = None


@dataclass(frozen=True)
class BadCall:
    """A call or text that asks for nothing that can be done. `problem` says why, in words for the policy."""

    problem: str
    call: ToolCall | None = None


@dataclass(frozen=True)
class FinalAnswer:
    """The policy's answer, which ends the attempt."""

    text: str


Action = Search | BadCall | FinalAnswer


def read_tool_calls(turn: AssistantTurn) -> Sequence[Action]:
    """What a turn asks for by the chat template's calls; never empty.

    A turn with calls is no answer, whatever else it says. Without calls, its last line `Answer: ...` is one.
    """
    if turn.tool_calls:
        return [
            _search(call)
            if number < MAX_CALLS
            else BadCall(f"only the first {MAX_CALLS} calls of a turn are done", call)
            for number, call in enumerate(turn.tool_calls)
        ]
    lines = _ANSWER.findall(turn.text)
    if not lines:
        return [BadCall("the turn has neither a tool call nor a line that begins with Answer:")]
    return [_answer(lines[-1])]


def read_plain_lines(turn: AssistantTurn) -> Sequence[Action]:
    """What a turn asks for in the plain protocol: one action."""
    line = _LINE.search(turn.text)
    if line is None:
        return [BadCall("the turn has no line that begins with Search: or Answer:")]
    if line.group(1).lower() != SEARCH:
        return [_answer(line.group(2))]
    query = line.group(2).strip(_AROUND)
    return [BadCall(problem) if (problem := _query_problem(query)) else Search(query)]


def _answer(text: str) -> Action:
    answer = text.strip(_AROUND)
    return FinalAnswer(answer) if answer else BadCall("the line that begins with Answer: is empty")


def _search(call: ToolCall) -> Action:
    if call.problem is not None:
        return BadCall(call.problem, call)
    if call.name != SEARCH:
        return BadCall(f"there is no tool {_shown(call.name)}; there is {SEARCH}", call)
    unknown = sorted(set(call.arguments) - {"query"})
    if unknown:
        return BadCall(f"{SEARCH} takes no argument {_shown(unknown[0])}; it takes query", call)
    query = call.arguments.get("query")
    if not isinstance(query, str):
        return BadCall(f"{SEARCH} needs the argument query, a text", call)
    problem = _query_problem(query.strip())
    return BadCall(problem, call) if problem else Search(query.strip(), call)


def _query_problem(query: str) -> str:
    if not query:
        return "the query is empty"
    if len(query) > MAX_QUERY_CHARACTERS:
        return f"the query has {len(query)} characters; allowed are {MAX_QUERY_CHARACTERS}"
    return ""


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
