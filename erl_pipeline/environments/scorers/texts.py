"""Scorers that compare texts: `exact`, `contains` and `f1`."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from erl_pipeline.environments.same_text import reading_key, uniform
from erl_pipeline.environments.scorers.interface import (
    LONGEST_ANSWER,
    Scored,
    Scorer,
    altered_numbers,
    too_long,
)

_QUOTED = re.compile(r"""(["'`*“‘])(.+)(["'`*”’])""")
_CLOSED_BY = {"“": "”", "‘": "’"}
_AROUND = " ,;:?"
_WORDS = re.compile(r"\w+")
# A number is one word, with its sign and its decimals; a hyphen between words is no sign.
_NUMBERS_AND_WORDS = re.compile(r"(?<!\w)[-−]?[0-9]+(?:[.,][0-9]+)*|(?<![\w.])[-−]?\.[0-9]+|\w+")
_ARTICLES = frozenset({"a", "an", "the"})


def normalised(text: str) -> str:
    """The text with characters (NFKC, but for exponents), case and white space made uniform, and without
    quotes or punctuation around it. A `.` before a digit and a `!` after one belong to the number."""
    plain = reading_key(text)
    while (shorter := _without_marks(plain)) != plain:
        plain = shorter
    return plain


def _without_marks(text: str) -> str:
    text = text.strip(_AROUND)
    found = _QUOTED.fullmatch(text)
    if found and _CLOSED_BY.get(found[1], found[1]) == found[3]:
        return found[2]
    if text.endswith(".") or (text.endswith("!") and not text[-2:-1].isnumeric()):
        return text[:-1]
    begins = text.startswith("!") or (text.startswith(".") and not text[1:2].isdigit())
    return text[1:] if begins else text


def _exact(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    return too_long(answer) or float(answer is not None and normalised(answer) == _right(payload))


def _contains(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    if answer is None or (long := too_long(answer)):
        return 0.0 if answer is None else long or 0.0
    said, right = (f" {' '.join(_numbers_and_words(text))} " for text in (answer, str(payload["answer"])))
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


def _numbers_and_words(text: str) -> list[str]:
    """As `_words`, but numbers are whole: -5, 5.5 and 1,005 are not 5."""
    plain = uniform(text).casefold().replace("−", "-")
    return [word for word in _NUMBERS_AND_WORDS.findall(plain) if word not in _ARTICLES]


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


def _other_numbers(payload: Mapping[str, Any]) -> list[str]:
    """`contains` and `f1` look at words only: a factorial has the word of its number, a list those of its
    guesses, and to `f1` a sign is no word."""
    right = str(payload["answer"]).strip().lstrip("-")
    return [wrong for wrong in altered_numbers(payload) if wrong.isdigit() and wrong != right]


contains = Scorer(_contains, _has_words, wrong_answers=_other_numbers, bounded=True)
"""1 where the given answer has the words of the right one, in a row."""
f1 = Scorer(_f1, _has_words, wrong_answers=_other_numbers, bounded=True)
"""The harmonic mean of precision and recall of the words."""
