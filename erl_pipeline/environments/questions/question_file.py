"""Questions from a file of JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.environments.same_text import reading_key
from storage.errors import InputError

_MARK = "####"


@dataclass(frozen=True)
class Question:
    """One line. `fields` are those beyond question, answer, id and kind; `line` is its number in the file."""

    question: str
    answer: str
    line: int
    task_id: str | None = None
    task_type: str | None = None
    fields: Mapping[str, Any] | None = None

    @property
    def key(self) -> str:
        """What tells the question apart from others."""
        return reading_key(self.question)

    @property
    def place(self) -> str:
        """What its id and its place in a split are drawn from."""
        return " ".join(self.question.split()).casefold()

    @property
    def payload(self) -> dict[str, Any]:
        """All that a task's environment and scorer get."""
        return {**(self.fields or {}), "question": self.question, "answer": self.answer}


def read_questions(
    path: Path,
    source: Literal["lines", "gsm8k"],
    check: Callable[[Mapping[str, Any]], None] = lambda payload: None,
) -> list[Question]:
    """The questions of a file, in its order; blank lines are skipped.

    Args:
        check: raises `ValueError`, saying what is wrong, for the payload of a task that cannot be scored.

    Raises `InputError` naming the file, the line and what is wrong with it; two lines with the same question
    or the same id are wrong too.
    """
    found: list[Question] = []
    seen: dict[tuple[str, str], int] = {}
    for number, line in _lines(path):
        try:
            question = _parse_line(number, line, source)
            check(question.payload)
            for what, value in (("question", question.key), ("id", question.task_id)):
                if value is not None and (earlier := seen.setdefault((what, value), number)) != number:
                    raise ValueError(f"its {what} is already on line {earlier}: {value[:80]!r}")
        except ValueError as error:
            raise InputError(f"question file {path}, line {number}: {error}") from error
        found.append(question)
    if not found:
        raise InputError(f"question file {path} holds no question")
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"question file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"question file {path} is not UTF-8 text (byte {error.start})") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def _parse_line(number: int, line: str, source: Literal["lines", "gsm8k"]) -> Question:
    """Raises `ValueError` saying what is wrong."""
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    missing = [key for key in ("question", "answer") if not isinstance(record, dict) or key not in record]
    if missing:
        raise ValueError(f"{', '.join(missing)} missing; needed: an object with question and answer")
    question = _text("question", record.pop("question"))
    answer = record.pop("answer")
    if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
        answer = str(answer)
    answer = _text("answer", answer)
    ends = any(each.startswith(_MARK) for each in answer.splitlines()[1:])
    if source == "gsm8k":
        answer = _after_mark(answer)
    elif ends:
        raise ValueError(
            f"the answer is a solution that ends in a line `{_MARK} ...`; set environment.source: gsm8k"
        )
    names = {name: _optional_text(name, record.pop(name, None)) for name in ("id", "task_type")}
    return Question(question, answer, number, names["id"], names["task_type"], record)


def _after_mark(solution: str) -> str:
    _, mark, answer = solution.rpartition(_MARK)
    if not mark or not answer.strip():
        raise ValueError(f"answer: its last line has to be `{_MARK} ` and the final answer")
    return answer.strip()


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}: {str(value)[:80]!r}; allowed is a text that is not empty")
    return value.strip()


def _optional_text(name: str, value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return None if value is None else _text(name, value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
