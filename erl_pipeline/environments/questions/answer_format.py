"""Finding the answer in what the policy says, always in a time proportional to the length of the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from erl_pipeline.environments.questions.settings import AnswerFormat

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
