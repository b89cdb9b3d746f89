"""What happened in an attempt, and the texts that are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

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
        """All searches, in their order."""
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
        turns = _count(len(record.turns), "turn")
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
        f"The question needs {_count(needed, 'page')}; {which} "
        f"{'was' if found == 1 and needed != 1 else 'were'} among the results of "
        f"{_count(len(record.searches), 'search', 'searches')}."
    ]
    stale = [str(number) for number, each in enumerate(record.searches, start=1) if not each.new]
    if stale:
        said.append(f"{'Search' if len(stale) == 1 else 'Searches'} {', '.join(stale)} returned nothing new.")
    return said


def _of_bad_calls(record: Record) -> list[str]:
    if not record.bad_calls:
        return []
    return [f"{_count(len(record.bad_calls), 'call')} could not be done."]


def _event(event: Event) -> str:
    if isinstance(event, SearchRecord):
        return f'searched for "{event.query}"; results: {"; ".join(event.titles) or "none"}'
    if isinstance(event, Verdict):
        return f'answered "{event.answer}"'
    return f"not done: {event}"


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
