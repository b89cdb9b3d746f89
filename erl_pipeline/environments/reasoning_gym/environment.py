"""A stored question as an environment: one turn, and its score."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema
from erl_pipeline.environments.reasoning_gym.checkers import broken_rules
from erl_pipeline.environments.reasoning_gym.library import AnswerScore, known_answer, qualification, score
from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat, ReasoningGymConfig


class ReasoningGymEnvironment:
    """The attempts of one episode. The question and its scoring come from the stored entry alone."""

    tools: Sequence[ToolSchema] = ()

    def __init__(self, settings: ReasoningGymConfig, task: Task) -> None:
        self._settings = settings
        self._dataset: str = task.payload["dataset"]
        self._config: Mapping[str, Any] = task.payload["config"]
        self._entry: Mapping[str, Any] = task.payload["entry"]
        self._text = ""
        self._attempt: ScoredAnswer | None = None

    @property
    def instructions(self) -> str:
        return self._settings.instructions

    async def reset(self) -> Observation:
        self._text, self._attempt = "", None
        return f"{self._entry['question'].strip()}\n{FORMS[self._settings.answer_format].asked}"

    async def step(self, turn: AssistantTurn) -> Transition:
        answer = find_answer(self._settings.answer_format, turn.text)
        found = (
            AnswerScore(0.0) if answer is None else score(self._dataset, self._config, self._entry, answer)
        )
        self._text, self._attempt = turn.text, ScoredAnswer(answer, found)
        return Transition(
            messages=[],
            reward=found.value if self._settings.reward == "score" else float(found.right),
            done=True,
            metrics={
                "score": found.value,
                "answers_found": float(answer is not None),
                "unscored_answers": float(found.problem is not None),
            },
        )

    async def feedback(self) -> str:
        assert self._attempt is not None
        return say(self._dataset, self._entry, self._settings.answer_format, self._attempt)

    def trace(self) -> str:
        return f"Question: {self._entry['question'].strip()}\nAnswer: {self._text.strip()}"

    async def close(self) -> None:
        """There is nothing to release."""


def gold_answer(settings: ReasoningGymConfig, task: Task) -> str | None:
    """A right answer in the form that is asked for; None where that form cannot hold it."""
    answer = known_answer(task.payload["dataset"], task.payload["entry"])
    if answer is None:
        return None
    text = FORMS[settings.answer_format].write(answer.strip())
    return text if find_answer(settings.answer_format, text) == answer.strip() else None


def open_reasoning_gym(settings: ReasoningGymConfig, task: Task) -> ReasoningGymEnvironment:
    """The environment of a task made by `tasks`."""
    return ReasoningGymEnvironment(settings, task)


_SHOWN = 200
_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]*)?")


@dataclass(frozen=True)
class ScoredAnswer:
    """The answer that was found, None where there was none, and its score."""

    answer: str | None
    score: AnswerScore


def say(name: str, entry: Mapping[str, Any], answer_format: AnswerFormat, attempt: ScoredAnswer) -> str:
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


_OPENING = "<answer>"


_CLOSING = "</answer>"


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
