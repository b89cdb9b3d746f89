"""The scorer `numeric`: numbers with a tolerance, as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from erl_pipeline.environments.scorers.interface import Scored, Scorer, too_long

RELATIVE_TOLERANCE = Fraction(1, 1_000_000)
_LONGEST = 200  # characters of an answer, so that no number has too many digits to compute with quickly

_NUMBER = re.compile(
    r"""(?<![\w.])(?P<sign>[-+]?)[ ]?
    (?: (?:(?P<whole>[0-9]+)[ ])?(?P<over>[0-9]+)[ ]?/[ ]?(?P<under>[0-9]+)
      | (?P<decimal>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)
        (?:[eE](?P<exponent>[-+]?[0-9]{1,3}))?
    )(?![0-9])(?P<percent>[ ]?%)?""",
    re.VERBOSE,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_DROPPED = re.compile(r"\\[,!;]|\\ |[$€£\\]")
# What makes another number of the one before it: a factorial, an exponent, a variable or an operator.
_CHANGED = re.compile(r"\s?[!+^]|[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹]|[^\W\d_](?![^\W\d_])|-(?!\w)|[*×÷]\w|\s[*×÷]\s?\w")
# A bound or a denial says of a number that the answer is another. `<b>11</b>` is no bound.
_NOT_IT = re.compile(
    r"[≤≥≠]|!=|\\(?:le|leq|ge|geq|ne|neq|lt|gt)(?![a-z])"
    r"|(?<![<\w/])(?:[A-Za-z][<>]=?|[<>]=?\s*[-+$.0-9])|[0-9]\s+[<>]"
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
    where the text says something else of it: `11!`, `11²`, `11x`, `11-`, `x \\leq 11`, `not 11`.

    It reads `1,234.5`, `-3e2`, `3/4`, `1 1/2` and `\\frac{3}{4}`, with a currency sign before or `%` after.
    """
    plain = _DROPPED.sub("", _FRACTION.sub(r"\1/\2", text.replace("−", "-")))
    found = list(_NUMBER.finditer(plain))
    if len(found) != 1 or _CHANGED.match(plain, found[0].end()) or _NOT_IT.search(text):
        return None
    parts = found[0].groupdict()
    if parts["decimal"] is not None:
        value = Fraction(parts["decimal"].replace(",", "")) * Fraction(10) ** int(parts["exponent"] or 0)
    elif int(parts["under"]) == 0:
        return None
    else:
        value = int(parts["whole"] or 0) + Fraction(int(parts["over"]), int(parts["under"]))
    return Number(-value if parts["sign"] == "-" else value, parts["percent"] is not None)


def _numeric(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    if answer is None or (long := too_long(answer, _LONGEST)):
        return 0.0 if answer is None else long or 0.0
    said, right = read_number(answer), _right(payload)
    if said is None:
        return Scored(0.0, "It is not a number, or holds more than one.")
    allowed = max(abs(right.value) * RELATIVE_TOLERANCE, _tolerance(payload))
    values = [said.value]
    if said.percent != right.percent:  # 20 % may be written as 20 or as 0.2
        values.append(said.value / 100 if said.percent else said.value * 100)
    return float(any(abs(value - right.value) <= allowed for value in values))


def _right(payload: Mapping[str, Any]) -> Number:
    text = str(payload["answer"])
    right = read_number(text) if len(text) <= _LONGEST else None
    if right is None:
        raise ValueError(f"answer: {text[:80]!r}; allowed with scorer: numeric is one number")
    return right


def _tolerance(payload: Mapping[str, Any]) -> Fraction:
    given = payload.get("tolerance", 0)
    if not isinstance(given, int | float) or isinstance(given, bool) or not 0 <= given < float("inf"):
        raise ValueError(f"tolerance: {given!r}; allowed are numbers from 0")
    return Fraction(given)


def _check(payload: Mapping[str, Any]) -> None:
    _right(payload)
    _tolerance(payload)


numeric = Scorer(_numeric, _check, bounded=True)
"""1 where both are the same number, to a millionth of it or to the task's own field `tolerance`."""


MOST_DIGITS = 10_000
_LARGEST_FACTORIAL = 3_000  # it has 9,131 digits
_LARGEST_EXPONENT = 10.0 * MOST_DIGITS

_POWER = r"\s*(?:\^|\*\*)[\s{(]*"
_TOWER = re.compile(rf"[0-9]+(?:\s*[)}}]?{_POWER}[0-9]+)+")
_FACTORIAL = re.compile(r"([0-9]+)[\s)}]*!")
_MAGNITUDE = re.compile(r"[0-9]+")


def has_huge_number(text: str) -> bool:
    """Whether a power of whole numbers (`9^{9^9}`, `10**(10**8)`) or a factorial in a text has more than
    `MOST_DIGITS` digits. Powers of anything else are not looked at."""
    towers = ([int(number) for number in _MAGNITUDE.findall(found[0])] for found in _TOWER.finditer(text))
    factorials = (int(found[1]) for found in _FACTORIAL.finditer(text))
    return any(map(_is_huge, towers)) or any(number > _LARGEST_FACTORIAL for number in factorials)


def _is_huge(tower: list[int]) -> bool:
    """For `[a, b, c]`, whether a ** (b ** c) is huge."""
    exponent = 1.0
    for base in reversed(tower[1:]):
        exponent = _power(base, exponent)
    return tower[0] > 1 and exponent * math.log10(tower[0]) > MOST_DIGITS


def _power(base: int, exponent: float) -> float:
    """The power, or, where it is larger, a number that is large enough to count as huge."""
    if base <= 1:
        return float(base)
    if exponent * math.log10(base) > math.log10(_LARGEST_EXPONENT):
        return _LARGEST_EXPONENT
    power: float = float(base) ** exponent
    return power
