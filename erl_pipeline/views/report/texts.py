"""How the pages, the report and the commands write numbers, times and texts."""

import json
import re
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

_LONG_TEXT = 4000
"""The most characters of a text that are shown."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)
"""Control characters but tab and line break, characters without width, marks of the direction of writing."""


def ago(moment: datetime | None) -> str:
    """How long ago something was, in words."""
    if moment is None:
        return "never"
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now" if seconds < 10 else f"{int(seconds)} seconds ago"


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash if there is none."""
    if value is None:
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.2g}" if abs(value) < 1e-3 else f"{value:,.{digits}f}"


def signed(value: float | None) -> str:
    """A number with its sign."""
    return "–" if value is None else f"{value:+.3f}"


def percent(share: float) -> str:
    """`0.5` as `50 %`."""
    return f"{100 * share:.0f} %"


def short(identifier: str | None) -> str:
    """The beginning of an id."""
    return "" if identifier is None else identifier[:12]


def words(name: str) -> str:
    """The name of a column or role, as words."""
    return name.replace("_", " ")


def bytes_text(size: float | None) -> str:
    """A size such as `4.2 MB`; empty if it is not known."""
    if size is None:
        return ""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor / 2:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def seconds_text(seconds: float | None) -> str:
    """A time such as `0.4 s`, `12 min`, `3.1 h`; empty if it is not known."""
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def pretty(value: Any) -> str:
    """A value as JSON on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def printable(text: str | None, limit: int = _LONG_TEXT) -> str:
    """A text with visible control characters, cut after `limit` characters.

    Terminal codes, and marks that reverse the direction of writing, could otherwise hide what a text says.
    """
    if text is None:
        return ""
    shown = text if len(text) <= limit else text[:limit]
    more = len(text) - len(shown)
    return _HIDDEN.sub(_symbol, shown) + (f"\n… {more:,} more characters" if more else "")


def visible(value: object) -> object:
    """A text with symbols in place of control characters and of marks that no reader sees; all else as it is.

    Every value that a template writes passes it, so that no page can forget it.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return _HIDDEN.sub(_symbol, value)


def _symbol(found: re.Match[str]) -> str:
    code = ord(found[0])
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"
