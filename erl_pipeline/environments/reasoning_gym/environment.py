"""A stored question as an environment: one turn, and its score."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema
from erl_pipeline.environments.reasoning_gym.answers import FORMS, find_answer
from erl_pipeline.environments.reasoning_gym.checkers import broken_rules
from erl_pipeline.environments.reasoning_gym.library import qualification
from erl_pipeline.environments.reasoning_gym.scoring import Score, known_answer, score
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
        self._attempt: Attempt | None = None

    @property
    def instructions(self) -> str:
        return self._settings.instructions

    async def reset(self) -> Observation:
        self._text, self._attempt = "", None
        return f"{self._entry['question'].strip()}\n{FORMS[self._settings.answer_format].asked}"

    async def step(self, turn: AssistantTurn) -> Transition:
        answer = find_answer(self._settings.answer_format, turn.text)
        found = Score(0.0) if answer is None else score(self._dataset, self._config, self._entry, answer)
        self._text, self._attempt = turn.text, Attempt(answer, found)
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
