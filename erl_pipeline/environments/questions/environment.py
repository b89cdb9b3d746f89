"""A question as an environment: one turn, a score, and feedback that is true and gives nothing away."""

from __future__ import annotations

from collections.abc import Sequence

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema
from erl_pipeline.environments.questions.answer_format import FORMATS
from erl_pipeline.environments.questions.settings import QuestionsConfig
from erl_pipeline.environments.scorers import Scored, checked_score, scorer_named
from erl_pipeline.environments.threads import in_thread

_SHOWN = 200  # characters of an answer that feedback repeats


class QuestionEnvironment:
    """The attempts of one episode."""

    tools: Sequence[ToolSchema] = ()

    def __init__(self, config: QuestionsConfig, task: Task) -> None:
        self._payload = task.payload
        self._format = FORMATS[config.answer_format]
        self._scorer = scorer_named(config.scorer)
        self._told = config.instructions.strip()
        self._said = ""
        self._answer: str | None = None
        self._scored: Scored | None = None

    @property
    def instructions(self) -> str:
        """The user's own instructions, and how the answer is to be marked."""
        return f"{self._told} {self._format.asked}".strip()

    async def reset(self) -> Observation:
        self._said, self._answer, self._scored = "", None, None
        question: str = self._payload["question"]
        return question

    async def step(self, turn: AssistantTurn) -> Transition:
        """Score the answer. Raises `ScorerFailed` where the scorer fails."""
        self._said = turn.text
        answer = self._answer = self._format.find(turn.text)
        if self._scorer.bounded:
            scored = checked_score(self._scorer, answer, self._payload)
        else:
            scored = await in_thread(lambda: checked_score(self._scorer, answer, self._payload))
        self._scored = scored
        return Transition(
            messages=(), reward=scored.score, done=True, metrics={"answered": float(answer is not None)}
        )

    async def feedback(self) -> str:
        """Whether an answer was found, what it was, and what the scorer says of it."""
        if self._scored is None:
            raise RuntimeError("the attempt is not over; there is no feedback yet")
        remark = f" {self._scored.remark}" if self._scored.remark else ""
        score = self._scored.score
        if self._answer is None:
            found = self._format.missing
            return f"{found}{remark}" if score == 0.0 else f"{found} Its score is {score:.3g}.{remark}"
        answer = self._answer if len(self._answer) <= _SHOWN else f"{self._answer[:_SHOWN]}..."
        if score in (0.0, 1.0):
            return f"Your answer was: {answer}\nIt is {'right' if score else 'wrong'}.{remark}"
        return f"Your answer was: {answer}\nIts score is {score:.3g}, where 1 is right.{remark}"

    def trace(self) -> str:
        """Question and reply as they were; a reflection prompt shows nothing else of the question."""
        return f"The question was: {self._payload['question']}\n\nThe reply was: {self._said}"

    async def close(self) -> None:
        """There is nothing to release."""


def open_question(config: QuestionsConfig, task: Task) -> QuestionEnvironment:
    """The environment of a task made by `tasks`."""
    return QuestionEnvironment(config, task)


def gold_answer(config: QuestionsConfig, task: Task) -> str | None:
    """A reply with an answer that scores 1, in the format that is asked for; None where the scorer knows
    none. It never reaches a policy."""
    answer = scorer_named(config.scorer).gold_answer(task.payload)
    return None if answer is None else FORMATS[config.answer_format].reply(answer)


def wrong_answers(config: QuestionsConfig, task: Task) -> list[str]:
    """Replies with answers that resemble the right one, in the format that is asked for."""
    wrong = scorer_named(config.scorer).wrong_answers(task.payload)
    return [FORMATS[config.answer_format].reply(answer) for answer in wrong]
