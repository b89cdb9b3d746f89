"""A stored question as an environment: one turn, and its score."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.reasoning_gym.checkers import broken_rules
from erl_pipeline.environments.reasoning_gym.library import AnswerScore, known_answer, qualification, score
from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat, ReasoningGymConfig
from erl_pipeline.environments.single_turn import ReplyScore, SingleTurnEnvironment


def gold_answer(settings: ReasoningGymConfig, task: Task) -> str | None:
    """A right answer in the form that is asked for; None where that form cannot hold it."""
    answer = known_answer(task.payload["dataset"], task.payload["entry"])
    if answer is None:
        return None
    text = FORMS[settings.answer_format].write(answer.strip())
    return text if find_answer(settings.answer_format, text) == answer.strip() else None


def open_reasoning_gym(settings: ReasoningGymConfig, task: Task) -> SingleTurnEnvironment:
    """The environment of a task made by `tasks`. Question and scoring come from the stored entry alone."""
    name, entry = task.payload["dataset"], task.payload["entry"]
    question = entry["question"].strip()

    async def scored(reply: str) -> ReplyScore:
        answer = find_answer(settings.answer_format, reply)
        found = AnswerScore(0.0) if answer is None else score(name, task.payload["config"], entry, answer)
        return ReplyScore(
            found.value if settings.reward == "score" else float(found.right),
            feedback_on(name, entry, settings.answer_format, answer, found),
            {
                "score": found.value,
                "answers_found": float(answer is not None),
                "unscored_answers": float(found.problem is not None),
            },
        )

    return SingleTurnEnvironment(
        settings.instructions,
        f"{question}\n{FORMS[settings.answer_format].asked}",
        scored,
        lambda reply: f"Question: {question}\nAnswer: {reply.strip()}",
    )


_SHOWN = 200
_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]*)?")


def feedback_on(
    name: str, entry: Mapping[str, Any], answer_format: AnswerFormat, answer: str | None, found: AnswerScore
) -> str:
    """The feedback on an attempt at an entry of dataset `name`; `answer` is None where there was none."""
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
