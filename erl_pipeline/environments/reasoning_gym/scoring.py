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
class Score:
    """A score from 0 to 1; 1 is right. `problem`: why the answer was not scored; its score is then 0."""

    value: float
    problem: str | None = None

    @property
    def right(self) -> bool:
        """Nothing below 1 is right: several scorers give a little to any text."""
        return self.value == 1.0


def score(name: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str) -> Score:
    """The score of an answer to a stored entry of dataset `name`.

    Where the library raises, or gives a number outside 0 to 1, the score is 0, with the problem.
    """
    problem = _unsafe(name, answer)
    if problem is not None:
        return Score(0.0, problem)
    scorer = library.scorer(name, config)
    try:
        value = float(scorer.score_answer(answer, deepcopy(dict(entry))))
    # Scorers raise whatever their parsing of an odd answer leads to; such an answer is wrong.
    except Exception as error:
        return Score(0.0, f"the scorer could not read it ({type(error).__name__})")
    if not 0.0 <= value <= 1.0:
        return Score(0.0, f"the scorer gave {value}, which is not between 0 and 1")
    return Score(value)


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
