"""Scorers that compare texts: `exact`, `contains` and `f1`."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from erl_pipeline.environments.scorers.interface import LONGEST_ANSWER, Scored, Scorer, too_long

_AROUND = " \t\n.,;:!?\"'`“”‘’*"
_WORDS = re.compile(r"\w+")
_ARTICLES = frozenset({"a", "an", "the"})


def normalised(text: str) -> str:
    """The text with characters (NFKC), case and white space made uniform, and no punctuation around it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(_AROUND)


def _exact(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    return too_long(answer) or float(answer is not None and normalised(answer) == _right(payload))


def _contains(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    if answer is None or (long := too_long(answer)):
        return 0.0 if answer is None else long or 0.0
    said, right = f" {' '.join(_words(answer))} ", f" {' '.join(_words(str(payload['answer'])))} "
    return float(right in said)


def _f1(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    if answer is None or (long := too_long(answer)):
        return 0.0 if answer is None else long or 0.0
    said, right = Counter(_words(answer)), Counter(_words(str(payload["answer"])))
    shared = (said & right).total()
    return 2 * shared / (said.total() + right.total()) if shared else 0.0


def _right(payload: Mapping[str, Any]) -> str:
    return normalised(str(payload["answer"]))


def _words(text: str) -> list[str]:
    """The words that count: without articles, in lower case (as for SQuAD, arXiv 1606.05250)."""
    found: list[str] = _WORDS.findall(unicodedata.normalize("NFKC", text).casefold())
    return [word for word in found if word not in _ARTICLES]


def _short_enough(payload: Mapping[str, Any]) -> None:
    length = len(str(payload["answer"]))
    if length > LONGEST_ANSWER:
        raise ValueError(
            f"answer: it has {length:,} characters; allowed are {LONGEST_ANSWER:,}, as for a policy's answer"
        )


def _has_text(payload: Mapping[str, Any]) -> None:
    _short_enough(payload)
    if not _right(payload):
        raise ValueError(f"answer: {payload['answer']!r} has nothing that could be compared")


def _has_words(payload: Mapping[str, Any]) -> None:
    _short_enough(payload)
    if not _words(str(payload["answer"])):
        raise ValueError(f"answer: {payload['answer']!r} has no word that could be compared")


exact = Scorer(_exact, _has_text, bounded=True)
"""1 where the normalised texts are equal."""
contains = Scorer(_contains, _has_words, bounded=True)
"""1 where the given answer has the words of the right one, in a row."""
f1 = Scorer(_f1, _has_words, bounded=True)
"""The harmonic mean of precision and recall of the words."""
