"""Scorers that compare texts as people write them: `exact`, `contains` and `f1`."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

from erl_pipeline.environments.scorers.interface import LONGEST_ANSWER, Scorer, altered_numbers, up_to

_KEPT = ("<super>", "<sub>", "<fraction>")
_UNSEEN = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))  # variation selectors
_HYPHENS = "\u2010\u2011"  # NFKC makes the first of the second, and leaves the first


def uniform(text: str) -> str:
    """The text with one sign for what has several in Unicode.

    Accents are composed, and full-width letters and marks, ligatures and other forms of a sign become plain
    (NFKC). So do the hyphens U+2010 and U+2011, which are a minus where the plain one is. Exponents, indices
    and fractions stay, since 2\u00b2 is not 22. Taken out is what nobody sees: zero-width spaces and joiners,
    marks of direction, soft hyphens (all of category Cf) and variation selectors.
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", "".join(map(_plain, composed)))


def reading_key(text: str) -> str:
    """A key that is equal for texts which differ only in case, in white space, or as `uniform` says."""
    return " ".join(uniform(text).casefold().split())


def _plain(letter: str) -> str:
    if unicodedata.category(letter) == "Cf" or letter in _UNSEEN:
        return ""
    if letter in _HYPHENS:
        return "-"
    kept = unicodedata.decomposition(letter).startswith(_KEPT)
    return letter if kept else unicodedata.normalize("NFKC", letter)


_QUOTED = re.compile(r"""(["'`*“‘])(.+)(["'`*”’])""")
_CLOSED_BY = {"“": "”", "‘": "’"}
_AROUND = " ,;:?"
_WORDS = re.compile(r"\w+")
# A number is one word, with its sign and its decimals; a hyphen between words is no sign.
_NUMBERS_AND_WORDS = re.compile(
    r"(?<!\w)[-−]?[0-9]+(?:[.,][0-9]+)*(?:e[-+]?[0-9]+)?[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*|(?<![\w.])[-−]?\.[0-9]+|\w+"
)
_EXPONENT = re.compile("(?<=[0-9])[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+")
DASH_AS_SIGN = re.compile(r"(?<!\w)(?<![0-9] )–(?=[.0-9])")
"""A dash that stands for a minus, and not between two numbers."""
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


def _exact(answer: str, payload: Mapping[str, Any]) -> float:
    return float(normalised(answer) == _right(payload))


def _contains(answer: str, payload: Mapping[str, Any]) -> float:
    said, right = (f" {' '.join(_numbers_and_words(text))} " for text in (answer, str(payload["answer"])))
    return float(right in said)


def _f1(answer: str, payload: Mapping[str, Any]) -> float:
    said, right = Counter(_words(answer)), Counter(_words(str(payload["answer"])))
    shared = (said & right).total()
    return 2 * shared / (said.total() + right.total()) if shared else 0.0


def _right(payload: Mapping[str, Any]) -> str:
    return normalised(str(payload["answer"]))


def _words(text: str) -> list[str]:
    """The words that count: without articles, in lower case (as for SQuAD, arXiv 1606.05250)."""
    plain = unicodedata.normalize("NFKC", _EXPONENT.sub(r" \g<0>", text))  # 2² is not 22, and H₂O is H2O
    found: list[str] = _WORDS.findall(plain.casefold())
    return [word for word in found if word not in _ARTICLES]


def _numbers_and_words(text: str) -> list[str]:
    """As `_words`, but numbers are whole: -5, 5.5, 1,005, 5e3 and 5² are not 5."""
    plain = DASH_AS_SIGN.sub("-", uniform(text).casefold()).replace("−", "-")
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


exact = Scorer(up_to(LONGEST_ANSWER, _exact), _has_text, bounded=True)
"""1 where the normalised texts are equal."""


def _other_numbers(payload: Mapping[str, Any]) -> list[str]:
    """`contains` and `f1` look at words only: a factorial has the word of its number, a list those of its
    guesses, and to `f1` a sign is no word."""
    right = str(payload["answer"]).strip().lstrip("-")
    return [wrong for wrong in altered_numbers(payload) if wrong.isdigit() and wrong != right]


contains = Scorer(up_to(LONGEST_ANSWER, _contains), _has_words, wrong_answers=_other_numbers, bounded=True)
"""1 where the given answer has the words of the right one, in a row."""
f1 = Scorer(up_to(LONGEST_ANSWER, _f1), _has_words, wrong_answers=_other_numbers, bounded=True)
"""The harmonic mean of precision and recall of the words."""
