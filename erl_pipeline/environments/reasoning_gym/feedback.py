"""Feedback on a finished attempt: only what is true of the policy's own answer, never the right answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from erl_pipeline.environments.reasoning_gym.answers import FORMS
from erl_pipeline.environments.reasoning_gym.checkers import broken_rules
from erl_pipeline.environments.reasoning_gym.qualification import qualification
from erl_pipeline.environments.reasoning_gym.scoring import Score
from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat

_SHOWN = 200
_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]*)?")


@dataclass(frozen=True)
class Attempt:
    """The answer that was found, None where there was none, and its score."""

    answer: str | None
    score: Score


def say(name: str, entry: Mapping[str, Any], answer_format: AnswerFormat, attempt: Attempt) -> str:
    """The feedback on an attempt at an entry of dataset `name`."""
    answer, found = attempt.answer, attempt.score
    if answer is None:
        return f"No answer was found: {FORMS[answer_format].missing}."
    if found.right:
        return "The answer is correct."
    shown = answer if len(answer) <= _SHOWN else answer[:_SHOWN] + "..."
    said = [f"The answer {shown} is not correct." if "\n" not in shown else "The answer is not correct."]
    if found.problem is not None:
        said.append(f"It was not scored: {found.problem}.")
    if name in qualification().numeric and not _NUMBER.fullmatch(answer):
        said.append("The answer should be a number and nothing else.")
    said += broken_rules(name, entry["metadata"], answer)
    if 0.0 < found.value < 1.0:
        said.append(f"Its score is {found.value:.2f}; a correct answer has 1.")
    return " ".join(said)
