"""A question as an environment: one turn, a score, and feedback that is true and gives nothing away."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.questions.settings import AnswerFormat, QuestionsConfig
from erl_pipeline.environments.scorers.interface import Scored, score_answer, scorer_named
from erl_pipeline.environments.single_turn import ReplyScore, SingleTurnEnvironment

_SHOWN = 200  # characters of an answer that feedback repeats


def open_question(config: QuestionsConfig, task: Task) -> SingleTurnEnvironment:
    scorer, marking, question = (
        scorer_named(config.scorer),
        FORMATS[config.answer_format],
        task.payload["question"],
    )

    async def score(reply: str) -> ReplyScore:
        answer = marking.find(reply)
        scored = await score_answer(scorer, answer, task.payload)
        return ReplyScore(
            scored.score, feedback_on(marking, answer, scored), {"answered": float(answer is not None)}
        )

    return SingleTurnEnvironment(
        f"{config.instructions.strip()} {marking.asked}".strip(),
        question,
        score,
        lambda reply: f"The question was: {question}\n\nThe reply was: {reply}",
    )


def feedback_on(marking: AnswerMarking, answer: str | None, scored: Scored) -> str:
    """Whether an answer was found, what it was, and what the scorer says of it."""
    remark, score = f" {scored.remark}" if scored.remark else "", scored.score
    if answer is None:
        return (
            f"{marking.missing}{remark}"
            if score == 0.0
            else f"{marking.missing} Its score is {score:.3g}.{remark}"
        )
    shown = answer if len(answer) <= _SHOWN else f"{answer[:_SHOWN]}..."
    if score in (0.0, 1.0):
        return f"Your answer was: {shown}\nIt is {'right' if score else 'wrong'}.{remark}"
    return f"Your answer was: {shown}\nIts score is {score:.3g}, where 1 is right.{remark}"


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
class AnswerMarking:
    """A way to mark an answer: how it is asked for, how it is found, what is said where there is none, and
    `marked`, a reply with `{}` in place of the answer."""

    asked: str
    find: Callable[[str], str | None]
    missing: str
    marked: str = "{}"

    def reply(self, answer: str) -> str:
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


FORMATS: Mapping[AnswerFormat, AnswerMarking] = {
    "boxed": AnswerMarking(
        "Write the final answer as \\boxed{answer}.",
        in_box,
        "No answer was found: the last \\boxed{...} counts, and there was none with anything in it.",
        "\\boxed{{}}",
    ),
    "tag": AnswerMarking(
        "Write the final answer as <answer>answer</answer>.",
        in_tag,
        "No answer was found: the last <answer>...</answer> counts, and there was none with anything in it.",
        "<answer>{}</answer>",
    ),
    "last_line": AnswerMarking(
        "Write the final answer alone on the last line.",
        on_last_line,
        "No answer was found: the last line counts, and there was none with anything on it.",
    ),
    "whole": AnswerMarking(
        "Reply with the answer alone.", _some, "No answer was found: the reply was empty."
    ),
}
