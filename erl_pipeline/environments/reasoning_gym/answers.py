"""Finding the answer in what a policy wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from erl_pipeline.environments.reasoning_gym.settings import AnswerFormat

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
