"""Reading answers; what cannot be read is None."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any


def whole_number(text: str) -> int | None:
    """A whole number of at most 12 digits."""
    return int(text) if re.fullmatch(r"\s*[-+]?[0-9]{1,12}\s*", text) else None


def json_value(text: str) -> Any:
    """A JSON value; None also for `null`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def strings(value: Any) -> list[str] | None:
    """A list of strings."""
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def lists_of_strings(value: Any) -> list[list[str]] | None:
    """A list of lists of strings."""
    return value if isinstance(value, list) and all(strings(each) is not None for each in value) else None


def listed(names: Iterable[object]) -> str:
    """The first few of some names, for a sentence."""
    shown = [str(name)[:40] for name in names]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def missing_and_foreign(given: Sequence[Any], used: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What was given and is used too rarely, and what is used too often or was not given; each in order."""
    missing, foreign = Counter(given) - Counter(used), Counter(used) - Counter(given)
    return list(missing.elements()), list(foreign.elements())
