"""Finding out, before anything is computed, whether an expression has a number that no machine can hold."""

from __future__ import annotations

import math
import re

MOST_DIGITS = 10_000
_LARGEST_FACTORIAL = 3_000  # it has 9,131 digits
_LARGEST_EXPONENT = 10.0 * MOST_DIGITS

_POWER = r"\s*(?:\^|\*\*)[\s{(]*"
_TOWER = re.compile(rf"[0-9]+(?:\s*[)}}]?{_POWER}[0-9]+)+")
_FACTORIAL = re.compile(r"([0-9]+)[\s)}]*!")
_NUMBER = re.compile(r"[0-9]+")


def has_huge_number(text: str) -> bool:
    """Whether a power of whole numbers (`9^{9^9}`, `10**(10**8)`) or a factorial in a text has more than
    `MOST_DIGITS` digits. Powers of anything else are not looked at."""
    towers = ([int(number) for number in _NUMBER.findall(found[0])] for found in _TOWER.finditer(text))
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
