"""Questions and pages from files, checked as they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from storage.errors import InputError

_KEYS = ("_id", "question", "answer", "supporting_facts", "context", "type", "level")


@dataclass(frozen=True)
class Passage:
    """A page of the encyclopedia."""

    title: str
    text: str


@dataclass(frozen=True)
class Question:
    """One question. `supporting` are the titles of the pages that its answer follows from."""

    question_id: str
    question: str
    answer: str
    supporting: tuple[str, ...]
    context: tuple[Passage, ...]
    kind: str
    level: str


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in HotpotQA's official distractor format, in its order.

    Raises `InputError` naming the file, the place of the question in the list and what is wrong with it.
    """
    try:
        records = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"question file {path} is not JSON: {error}") from error
    if not isinstance(records, list) or not records:
        raise InputError(f"question file {path} holds no questions; needed: a list of objects")
    questions: list[Question] = []
    places: dict[str, int] = {}
    for number, record in enumerate(records, start=1):
        try:
            question = _question(record)
            if question.question_id in places:
                raise ValueError(
                    f"_id {question.question_id!r} is already that of question {places[question.question_id]}"
                )
        except ValueError as error:
            raise InputError(f"question file {path}, question {number}: {error}") from error
        places[question.question_id] = number
        questions.append(question)
    return questions


def read_passages(path: Path) -> list[Passage]:
    """The pages of a file of JSON lines. Raises `InputError` naming the file and the line."""
    passages = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("needed: an object with title and text")
            passages.append(Passage(_line(record, "title"), _words(record, "text")))
        except (ValueError, RecursionError) as error:
            raise InputError(f"passage file {path}, line {number}: {error}") from error
    return passages


def different_passages(questions: Iterable[Question], further: Iterable[Passage] = ()) -> list[Passage]:
    """The pages of all contexts and the further ones, each once, in the order in which they come."""
    of_contexts = (passage for question in questions for passage in question.context)
    return list(dict.fromkeys([*of_contexts, *further]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _question(record: Any) -> Question:
    missing = [key for key in _KEYS if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; needed: an object with {', '.join(_KEYS)}")
    context = _context(record["context"])
    return Question(
        question_id=_words(record, "_id"),
        question=_words(record, "question"),
        answer=_words(record, "answer"),
        supporting=_supporting(record["supporting_facts"], {passage.title for passage in context}),
        context=context,
        kind=_words(record, "type"),
        level=_words(record, "level"),
    )


def _context(value: Any) -> tuple[Passage, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_page, value)):
        raise ValueError("context: a list of [title, [sentences]] is needed")
    return tuple(Passage(" ".join(title.split()), "".join(sentences).strip()) for title, sentences in value)


def _is_page(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    title, sentences = value
    return (
        isinstance(title, str)
        and bool(title.strip())
        and isinstance(sentences, list)
        and all(isinstance(sentence, str) for sentence in sentences)
    )


def _supporting(value: Any, titles: set[str]) -> tuple[str, ...]:
    pairs = value if isinstance(value, list) else []
    if not pairs or not all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise ValueError("supporting_facts: a list of [title, number of the sentence] is needed")
    found = tuple(dict.fromkeys(" ".join(title.split()) for title, _ in pairs))
    for title in found:
        if title not in titles:
            raise ValueError(f"supporting_facts: the context has no page {title!r}")
    return found


def _words(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: {value!r}; allowed is a text that is not empty")
    return value.strip()


def _line(record: Mapping[str, Any], key: str) -> str:
    return " ".join(_words(record, key).split())


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
