"""Scoring an answer with the library, guarded so that every answer gets a score."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from erl_pipeline.environments.reasoning_gym import library
from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat

LONGEST_ANSWER = 10_000
"""Characters; several scorers take a time that grows with the square of the length, or faster."""

_ANSWER_IN_METADATA = {
    "graph_color": "possible_answer",
    "propositional_logic": "example_answer",
    "rubiks_cube": "example_correct_answer",
}
_POWER_OR_HUGE = re.compile(r"\*\s*\*|/\s*/|[0-9]{13}")
_HUGE_EXPONENT = re.compile(r"\d[eE][+-]?\d{4,}")


@dataclass(frozen=True)
class AnswerScore:
    """A score from 0 to 1; 1 is right. `problem`: why the answer was not scored; its score is then 0."""

    value: float
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Nothing below 1 is right: several scorers give a little to any text."""
        return self.value == 1.0


def score(name: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> AnswerScore:
    """The score of an answer to a stored entry of dataset `name`.

    Where the library raises, or gives a number outside 0 to 1, the score is 0, with the problem.
    """
    problem = _unsafe(name, answer)
    if problem is not None:
        return AnswerScore(0.0, problem)
    scorer = library.scorer(name, config)
    try:
        value = float(scorer.score_answer(answer, deepcopy(dict(entry))))
    # Scorers raise whatever their parsing of an odd answer leads to; such an answer is wrong.
    except Exception as error:
        return AnswerScore(0.0, f"the scorer could not read it ({type(error).__name__})")
    if not 0.0 <= value <= 1.0:
        return AnswerScore(0.0, f"the scorer gave {value}, which is not between 0 and 1")
    return AnswerScore(value)


def known_answer(name: str, entry: Mapping[str, Any]) -> str | None:
    """A right answer to an entry, where the library knows one."""
    answer = entry["answer"]
    if answer is None and name in _ANSWER_IN_METADATA:
        answer = entry["metadata"][_ANSWER_IN_METADATA[name]]
    if answer is None or isinstance(answer, str):
        return answer
    return json.dumps(answer)


def _unsafe(name: str, answer: str) -> str | None:
    """Why the answer must not be given to the scorer; None for one that may."""
    if len(answer) > LONGEST_ANSWER:
        return f"it is longer than {LONGEST_ANSWER} characters"
    if _HUGE_EXPONENT.search(answer):
        return "it has a number with a huge exponent"
    harmless = _EVALUATED.get(name)
    if harmless is not None and not harmless(answer):
        return "it has signs that no answer to this question needs"
    return None


def _is_literal(answer: str) -> bool:
    """Whether it is safe to `eval`: words alone, or a literal such as a list."""
    if re.fullmatch(r"[\w\s]*", answer):
        return True
    try:
        ast.literal_eval(answer)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True


def _is_arithmetic(answer: str) -> bool:
    """Whether it is made of numbers and + - * / ( ) alone, without powers."""
    return bool(re.fullmatch(r"[0-9\s+\-*/()]*", answer)) and not _POWER_OR_HUGE.search(answer)


_EVALUATED: Mapping[str, Callable[[str], bool]] = {
    "binary_matrix": _is_literal,
    "countdown": _is_arithmetic,
    "n_queens": _is_literal,
    "puzzle24": _is_arithmetic,
    "spiral_matrix": _is_literal,
    "string_insertion": _is_literal,
}
"""Dataset whose scorer evaluates an answer as code -> a function that says whether an answer is harmless."""


_OPENING, _CLOSING = "<answer>", "</answer>"
_BRACE = re.compile(r"\\boxed\{|\{|\}")


@dataclass(frozen=True)
class Form:
    """How an answer is to be given: `asked` says so to the policy, `missing` says that there was none."""

    asked: str
    missing: str
    read: Callable[[str], str]
    write: Callable[[str], str]


def find_answer(answer_format: AnswerFormat, text: str) -> str | None:
    """The answer, without space around it; None where the text has none in this form, or an empty one."""
    return FORMS[answer_format].read(text).strip() or None


def _tagged(text: str) -> str:
    """The text between the last pair of tags."""
    start = text.rfind(_OPENING, 0, max(0, text.rfind(_CLOSING)))
    return text[start + len(_OPENING) :].partition(_CLOSING)[0] if start >= 0 else ""


def _boxed(text: str) -> str:
    """The content of the last box that is closed; it may have braces in pairs."""
    opened: list[tuple[bool, int]] = []
    last = (-1, -1)
    for match in _BRACE.finditer(text):
        if match.group() != "}":
            opened.append((match.group() != "{", match.end()))
        elif opened:
            is_box, start = opened.pop()
            if is_box:
                last = max(last, (start, match.start()))
    return text[last[0] : last[1]] if last[0] >= 0 else ""


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


FORMS: Mapping[AnswerFormat, Form] = {
    "tag": Form(
        "Give the final answer between <answer> and </answer>.",
        "the text has nothing between <answer> and </answer>",
        _tagged,
        lambda answer: f"{_OPENING}{answer}{_CLOSING}",
    ),
    "boxed": Form(
        "Give the final answer in \\boxed{}.",
        "the text has nothing in \\boxed{}",
        _boxed,
        lambda answer: f"\\boxed{{{answer}}}",
    ),
    "last_line": Form(
        "Give the final answer alone on the last line.",
        "the text has no line that is not empty",
        _last_line,
        str,
    ),
    "whole": Form("Give the answer and nothing else.", "the text is empty", str, str),
}
