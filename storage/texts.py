"""Texts from outside, made such that every file and every index can hold them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

REPLACED_TEXTS = "replaced_texts"
"""Counter of a stage: texts from outside in which a character was replaced."""
MOST_LEVELS = 64
"""Most levels of lists and objects within a JSON value from outside. Python's parser reads up to about 900
of them, but only from a place where few calls are under way."""


_LARGEST = 2**63  # numbers of 64 bits are below


def storable(text: str) -> str:
    """The text with U+FFFD in place of each unpaired surrogate, which no UTF-8 can hold. The two halves of a
    pair become the character that they stand for. Every other character stays, also control characters.

    The JSON text `"\\ud83d"` is plain ASCII, and becomes such a surrogate when it is read.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class StorableTexts:
    """Makes texts from outside storable, and counts those in which something was replaced."""

    def __init__(self) -> None:
        self.replaced = 0

    def text(self, text: str) -> str:
        """As `storable`."""
        kept = storable(text)
        self.replaced += kept != text
        return kept

    def value(self, value: Any, levels: int = MOST_LEVELS) -> Any:
        """A JSON value with all of its texts storable, the names in its objects too.

        Raises `ValueError` where it is nested deeper than `levels`.
        """
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, Mapping | list | tuple):
            return value
        if not levels:
            raise ValueError(f"is nested deeper than {MOST_LEVELS} levels")
        if isinstance(value, Mapping):
            return {self.value(name): self.value(each, levels - 1) for name, each in value.items()}
        return [self.value(each, levels - 1) for each in value]

    def counters(self) -> dict[str, int]:
        """The count under its name; empty where nothing was replaced."""
        return {REPLACED_TEXTS: self.replaced} if self.replaced else {}


def read_json(text: str) -> Any:
    """The value of a JSON text from outside.

    Raises `ValueError`, which says what the text is or has, for one that Python reads, but that other readers
    of a table could not: with NaN, Infinity or a number beyond 64 bits in it, or nested too deeply.
    """
    with _json_errors():
        return json.loads(text, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)


def read_json_at(text: str, place: int) -> tuple[Any, int]:
    """The JSON value that begins at a place in a text, and where it ends; raises as `read_json`."""
    with _json_errors():
        return _AT_A_PLACE.raw_decode(text, place)


@contextmanager
def _json_errors() -> Iterator[None]:
    try:
        yield
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(f"is nested deeper than {MOST_LEVELS} levels") from error


def _no_number(name: str) -> float:
    raise ValueError(f"is not JSON: {name} is no number there")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("has a number that is too large")
    return number


def _whole(text: str) -> int:
    # A number of 64 bits has at most 20 characters; `int` takes long for many digits, and refuses 4,301.
    if len(text) > 20 or not -_LARGEST <= (number := int(text)) < _LARGEST:
        raise ValueError("has a number that is too large; allowed are 64 bits")
    return number


_AT_A_PLACE = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite, parse_int=_whole)


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its word: `1 row`, `1,200 rows`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """Names in a sentence: `a`, `a and b`, `a, b and c`."""
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
