"""Lengths of time, as options give them."""

from __future__ import annotations

import re
from datetime import timedelta

from storage.errors import InputError


def parse_interval(text: str) -> timedelta:
    """A length of time from text such as `90s`, `20m`, `6h` or `1d`. Raises InputError for other text."""
    found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if found is None:
        raise InputError(f"--every {text!r} is not a time such as 90s, 20m, 6h or 1d")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[found[2]]
    return timedelta(**{unit: int(found[1])})
