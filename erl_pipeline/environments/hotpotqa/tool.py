"""The search tool, and what the policy asks for in a turn: by the chat template's calls, or in plain lines.

The plain protocol: a turn has a line `Search: what to look for` or a line `Answer: the answer`. The first of
them counts: what follows a search in the same turn was written before the search returned anything.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from erl_pipeline.environments.messages import AssistantTurn, ToolCall, ToolSchema
from storage.texts import counted

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


Ending = Literal["answered", "turns_used", "bad_calls"]


@dataclass(frozen=True)
class SearchRecord:
    """A search: the titles that it returned, and how many of them no earlier search had returned."""

    query: str
    titles: Sequence[str]
    new: int


@dataclass(frozen=True)
class Verdict:
    """How the attempt's answer was scored."""

    answer: str
    exact: bool
    f1: float


Event = SearchRecord | Verdict | str
"""What one action led to; a text says why a call could not be done."""


@dataclass
class Record:
    """An attempt so far: the events of each turn, and which of the supporting pages were found."""

    supporting: frozenset[str]
    turns: list[list[Event]] = field(default_factory=list)
    titles: set[str] = field(default_factory=set)
    ending: Ending | None = None

    @property
    def searches(self) -> list[SearchRecord]:
        return [event for turn in self.turns for event in turn if isinstance(event, SearchRecord)]

    @property
    def bad_calls(self) -> list[str]:
        """Why calls could not be done."""
        return [event for turn in self.turns for event in turn if isinstance(event, str)]

    @property
    def verdict(self) -> Verdict | None:
        """How the answer was scored; None before there is one."""
        return (
            next((event for event in self.turns[-1] if isinstance(event, Verdict)), None)
            if self.turns
            else None
        )

    @property
    def supporting_found(self) -> int:
        """How many of the supporting pages were among the results."""
        return len(self.supporting & self.titles)


def feedback(record: Record) -> str:
    """What was found and what was not. It has neither the answer nor a title of a supporting page. It has no
    words of the policy either, since they could be one of these."""
    return " ".join([_of_the_end(record), *_of_searches(record), *_of_bad_calls(record)])


def trace(record: Record) -> str:
    """The turns, each with what it asked for and the titles that it was shown."""
    return "\n".join(
        f"Turn {number}: {_event(event)}"
        for number, turn in enumerate(record.turns, start=1)
        for event in turn
    )


def _of_the_end(record: Record) -> str:
    verdict = record.verdict
    if verdict is None:
        turns = counted(len(record.turns), "turn")
        why = "too many calls could not be done" if record.ending == "bad_calls" else "all turns were used"
        return f"No answer was given in {turns}: {why}."
    if verdict.exact:
        return "The answer is right."
    if verdict.f1 > 0.0:
        return "The answer is not right, but some of its words are."
    return "The answer is not right."


def _of_searches(record: Record) -> list[str]:
    if not record.searches:
        return ["Nothing was searched for."]
    needed, found = len(record.supporting), record.supporting_found
    which = "all of them" if found == needed else f"{found} of them" if found else "none of them"
    said = [
        f"The question needs {counted(needed, 'page')}; {which} "
        f"{'was' if found == 1 and needed != 1 else 'were'} among the results of "
        f"{counted(len(record.searches), 'search', 'searches')}."
    ]
    stale = [str(number) for number, each in enumerate(record.searches, start=1) if not each.new]
    if stale:
        said.append(f"{'Search' if len(stale) == 1 else 'Searches'} {', '.join(stale)} returned nothing new.")
    return said


def _of_bad_calls(record: Record) -> list[str]:
    if not record.bad_calls:
        return []
    return [f"{counted(len(record.bad_calls), 'call')} could not be done."]


def _event(event: Event) -> str:
    if isinstance(event, SearchRecord):
        return f'searched for "{event.query}"; results: {"; ".join(event.titles) or "none"}'
    if isinstance(event, Verdict):
        return f'answered "{event.answer}"'
    return f"not done: {event}"
