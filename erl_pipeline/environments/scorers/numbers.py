"""The scorer that compares numbers as people write them: `numeric`."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from erl_pipeline.environments.scorers.interface import Scored, Scorer, up_to
from erl_pipeline.environments.scorers.texts import DASH_AS_SIGN, uniform

RELATIVE_TOLERANCE = Fraction(1, 1_000_000)
_LONGEST_NUMBER = (
    200  # characters of an answer, so that no number has too many digits to compute with quickly
)

_NUMBER = re.compile(
    r"""(?<![\w.])(?P<sign>[-+]?)[ ]?
    (?: (?:(?P<whole>[0-9]+)[ ])?(?P<over>[0-9]+)[ ]?/[ ]?(?P<under>[0-9]+)
      | (?P<decimal>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
        (?:[eE](?P<exponent>[-+]?[0-9]{1,3}))?
    )(?![0-9])(?P<percent>[ ]?%)?""",
    re.VERBOSE,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9])([0-9]))")
# In front of a fraction in LaTeX a digit is the whole number of a mixed one.
_WHOLE_BEFORE = re.compile(r"(?<=[0-9])(?:\\[,!;]|\\?[ ])*(?=\\[dt]?frac)")
_COUNTRY = re.compile(r"\bUS(?=\\?\$)")
_FRACTION_SIGN = re.compile("[¼-¾⅐-⅞]")
_MINUS_AS_WORD = re.compile(r"(?<!-)\b(?:minus|negative)\s+(?=[$€£]?[.0-9])", re.IGNORECASE)
_PERCENT = re.compile(r"\s?percent\b", re.IGNORECASE)
# `1_000` is no 1: digits that are joined so are read as no number, and neither is what stands beside them.
_JOINED = re.compile(r"\b[0-9][0-9e]*_+[0-9]", re.IGNORECASE)
_DROPPED = re.compile(r"\\[,!;]|\\ |[$€£\\]")
# What makes another number of the one before it: a factorial, an exponent, a base, a variable, a word.
_CHANGED = re.compile(
    r"\s?[!+^]|[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹₀-₉]|[^\W\d_](?![^\W\d_])|-(?!\w)|[*×÷]\w|\s[*×÷]\s?\w"
    r"|\s?/\s?(?![hdwlsm]\b)[^\W\d_](?![^\W\d_])|\s?pi\b|\s(?:mod|choose|squared|cubed|factorial)\b"
    r"|\sor\s(?!so\b|more\b|less\b)",
    re.IGNORECASE,
)
# What makes another number of the one after it: a root, an exponent, a function, a divisor or a word.
_CHANGED_BY = re.compile(
    r"(?:[√^]\s?|log[₀-₉]+\s?\(?|(?:[\^_]|sqrt|log|ln|frac)\{|(?:\b[^\W\d_]|sqrt|log|ln|exp|sin|cos|tan)\(|-\s?\("
    r"|(?:\bpi|\b(?!w)[^\W\d_]|[)}0-9])\s?/\s?)$"
    r"|(?<!\bno )\b(?:more|less|fewer|greater|other|rather)\s+than\s+$|(?<!/)\bor\s+$"
    r"|\b(?:half|third|quarter|root|log)\s+of\s+$|\b(?:twice|double|triple)\s+$",
    re.IGNORECASE,
)
_MULTIPLIER = re.compile(r"\s(hundred|thousand|million|billion|trillion)\b(?!-)", re.IGNORECASE)
_TIMES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# A bound or a denial says of a number that the answer is another. `<b>11</b>` and `-> 11` are no bounds.
_NOT_IT = re.compile(
    r"[≤≥≠]|!=|\\(?:le|leq|ge|geq|ne|neq|lt|gt)(?![a-z])"
    r"|(?<![<\w/=-])(?:[A-Za-z][<>]=?|[<>]=?\s*[-+$.0-9])|[0-9]\s+[<>]"
    r"|(?:\b(?:not|never)|n['’]t)(?:\s+\w+)?\s+[-+$.]*[0-9]",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Number:
    """A number that was read, and whether a percent sign came after it."""

    value: Fraction
    percent: bool


def read_number(text: str) -> Number | None:
    """The only number in a text, whatever words are around it; None where there is none, or several, or
    where the text says something else of it: `11!`, `11²`, `√11`, `11x`, `11-`, `half of 11`, `x \\leq 11`,
    `more than 11`, `not 11`, `11_000`.

    It reads `1,234.5`, `-3e2`, `minus 3`, `3/4`, `1 1/2`, `½`, `2 million`, `\\frac{3}{4}` and `1\\frac12`,
    with a currency sign before or `%` after.
    """
    written = _WHOLE_BEFORE.sub(" ", uniform(text).replace("−", "-").replace("{,}", ","))
    written = _FRACTION_SIGN.sub(_with_slash, _COUNTRY.sub("", written))
    written = _PERCENT.sub("%", _MINUS_AS_WORD.sub("-", DASH_AS_SIGN.sub("-", written)))
    plain = _DROPPED.sub("", _FRACTION.sub(_with_slash, written))
    found = list(_NUMBER.finditer(plain))
    if len(found) != 1 or _CHANGED.match(plain, found[0].end()) or _NOT_IT.search(written):
        return None
    if _CHANGED_BY.search(plain[: found[0].start()]) or _JOINED.search(plain):
        return None
    parts = found[0].groupdict()
    if parts["decimal"] is not None:
        value = Fraction(parts["decimal"].replace(",", "")) * Fraction(10) ** int(parts["exponent"] or 0)
    elif int(parts["under"]) == 0:
        return None
    else:
        value = int(parts["whole"] or 0) + Fraction(int(parts["over"]), int(parts["under"]))
    multiplier = _MULTIPLIER.match(plain, found[0].end())
    value *= 1 if multiplier is None else _TIMES[multiplier[1].lower()]
    return Number(-value if parts["sign"] == "-" else value, parts["percent"] is not None)


def _with_slash(fraction: re.Match[str]) -> str:
    """A fraction that is written as one sign or in LaTeX, as `1/2`."""
    if fraction.re is _FRACTION_SIGN:
        return " " + unicodedata.normalize("NFKC", fraction[0]).replace("⁄", "/")
    return "/".join(part for part in fraction.groups() if part is not None)


def _numeric(answer: str, payload: Mapping[str, Any]) -> float | Scored:
    said, right = read_number(answer), _right_number(payload)
    if said is None:
        return Scored(0.0, "It is not a number, or holds more than one.")
    allowed = max(abs(right.value) * RELATIVE_TOLERANCE, _tolerance(payload))
    values = [said.value]
    if said.percent != right.percent:  # 20 % may be written as 20 or as 0.2
        values.append(said.value / 100 if said.percent else said.value * 100)
    return float(any(abs(value - right.value) <= allowed for value in values))


def _right_number(payload: Mapping[str, Any]) -> Number:
    text = str(payload["answer"])
    right = read_number(text) if len(text) <= _LONGEST_NUMBER else None
    if right is None:
        raise ValueError(f"answer: {text[:80]!r}; allowed with scorer: numeric is one number")
    return right


def _tolerance(payload: Mapping[str, Any]) -> Fraction:
    given = payload.get("tolerance", 0)
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given < float("inf"):
        raise ValueError(f"tolerance: {given!r}; allowed are numbers from 0")
    return Fraction(given)


def _has_number(payload: Mapping[str, Any]) -> None:
    _right_number(payload)
    _tolerance(payload)


numeric = Scorer(up_to(_LONGEST_NUMBER, _numeric), _has_number, bounded=True)
"""1 where both are the same number, to a millionth of it or to the task's own field `tolerance`."""
