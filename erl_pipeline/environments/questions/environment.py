"""A question as an environment: one turn, a score, and feedback that is true and gives nothing away."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema
from erl_pipeline.environments.questions.settings import AnswerFormat, QuestionsConfig
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


_BRACES = re.compile(r"(?P<box>\\boxed\s{0,8}\{)|\\[{}\\]|(?P<open>\{)|(?P<close>\})")
_LABEL = re.compile(r"[\s*]*(?:####|(?:the\s+)?(?:final\s+)?answer(?:\s+is\b|[\s*]*:))[\s:*]*", re.IGNORECASE)
_OPEN, _CLOSE = "<answer>", "</answer>"


@dataclass(frozen=True)
class Format:
    """A way to mark an answer: how it is asked for, how it is found, what is said where there is none, and
    `marked`, a reply with `{}` in place of the answer."""

    asked: str
    find: Callable[[str], str | None]
    missing: str
    marked: str = "{}"

    def reply(self, answer: str) -> str:
        """A reply in this format."""
        return self.marked.replace("{}", answer)


def in_box(text: str) -> str | None:
    """The content of the last `\\boxed{...}` that is closed; of nested boxes, that of the innermost."""
    opened: list[int | None] = []  # where the content of a box begins; None for any other brace
    found: tuple[int, int] | None = None
    for match in _BRACES.finditer(text):
        if match["box"]:
            opened.append(match.end())
        elif match["open"]:
            opened.append(None)
        elif match["close"] and opened:
            begin = opened.pop()
            if begin is not None and (found is None or begin > found[0]):
                found = begin, match.start()
    return None if found is None else _some(text[found[0] : found[1]])


def in_tag(text: str) -> str | None:
    """The content of the last `<answer>...</answer>`."""
    end = text.rfind(_CLOSE)
    begin = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    return None if begin < 0 else _some(text[begin + len(_OPEN) : end])


def on_last_line(text: str) -> str | None:
    """The last line that is not empty, without a label before it."""
    line = text.rstrip().rpartition("\n")[2]
    label = _LABEL.match(line)
    return _some(line[label.end() :] if label else line)


def _some(text: str) -> str | None:
    return text.strip() or None


FORMATS: Mapping[AnswerFormat, Format] = {
    "boxed": Format(
        "Write the final answer as \\boxed{answer}.",
        in_box,
        "No answer was found: the last \\boxed{...} counts, and there was none with anything in it.",
        "\\boxed{{}}",
    ),
    "tag": Format(
        "Write the final answer as <answer>answer</answer>.",
        in_tag,
        "No answer was found: the last <answer>...</answer> counts, and there was none with anything in it.",
        "<answer>{}</answer>",
    ),
    "last_line": Format(
        "Write the final answer alone on the last line.",
        on_last_line,
        "No answer was found: the last line counts, and there was none with anything on it.",
    ),
    "whole": Format("Reply with the answer alone.", _some, "No answer was found: the reply was empty."),
}
