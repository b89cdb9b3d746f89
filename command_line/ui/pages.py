"""Turning what was read into pages: the templates, their filters, and what every page shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from command_line.program import command

_LONG_TEXT = 4000
"""Characters of a text that are shown before the reader asks for all of it."""


@dataclass(frozen=True)
class Crumb:
    """A step on the way to a page."""

    title: str
    address: str


@dataclass(frozen=True)
class TerminalCommand:
    """What a reader may want to do next, in a terminal."""

    what: str
    line: str


class Pages:
    """Renders the templates of one server."""

    def __init__(self, store_uri: str) -> None:
        self._store_uri = store_uri
        self._templates = Environment(
            loader=PackageLoader("command_line.ui"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals.update(store_uri=store_uri, address=address, link=link)
        self._templates.filters.update(
            ago=ago,
            number=number,
            signed=signed,
            printable=printable,
            short=short,
            bytes=bytes_text,
            seconds=seconds_text,
            words=words,
            pretty=pretty,
        )

    def command(self, what: str, *line: str) -> TerminalCommand:
        """A command over this store."""
        return TerminalCommand(what, command([*line, "--store", self._store_uri]))

    def page(
        self,
        request: Request,
        template: str,
        *,
        title: str,
        crumbs: Sequence[Crumb] = (),
        commands: Sequence[TerminalCommand] = (),
        answer: int = 200,
        **values: Any,
    ) -> HTMLResponse:
        """A whole page."""
        text = self._templates.get_template(template).render(
            request=request, title=title, crumbs=crumbs, commands=commands, **values
        )
        return HTMLResponse(_valid(text), status_code=answer)

    def part(self, template: str, **values: Any) -> HTMLResponse:
        """A piece of a page, which a page that is open puts in."""
        return HTMLResponse(_valid(self._templates.get_template(template).render(**values)))


def address(*parts: str | int, **query: Any) -> str:
    """A path on this server; each part is one segment whatever characters it has."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = [(name.rstrip("_"), value) for name, value in query.items() if value not in (None, "", [])]
    return path + (f"?{urlencode(given, doseq=True)}" if given else "")


def link(request: Request, **changes: Any) -> str:
    """The address of the page that is open with some parameters changed; None takes one away."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in changes]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"{request.url.path}?{urlencode([*kept, *new], doseq=True)}"


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
    """A number for people; a dash where there is none."""
    if value is None:
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.2g}" if abs(value) < 1e-3 else f"{value:,.{digits}f}"


def signed(value: float | None) -> str:
    """A number with its sign."""
    return "–" if value is None else f"{value:+.3f}"


def short(identifier: str | None) -> str:
    """The beginning of an id."""
    return "" if identifier is None else identifier[:12]


def words(name: str) -> str:
    """A name of columns or roles, as words."""
    return name.replace("_", " ")


def bytes_text(size: float) -> str:
    """A size such as `4.2 MB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,.0f} B"


def seconds_text(seconds: float | None) -> str:
    """A time such as `0.4 s`, `12 min`, `3.1 h`."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def pretty(value: Any) -> str:
    """A value as JSON on several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def printable(text: str | None, limit: int = _LONG_TEXT) -> str:
    """A text whose control characters can be seen; of a very long one the beginning.

    Terminal codes and marks that turn the direction of writing around would hide what a text says.
    """
    if text is None:
        return ""
    shown = text if len(text) <= limit else text[:limit]
    cleaned = "".join(character if _is_plain(character) else _picture(character) for character in shown)
    more = len(text) - len(shown)
    return cleaned + (f"\n… {more:,} more characters" if more else "")


def _is_plain(character: str) -> bool:
    code = ord(character)
    if code < 0x20:
        return character in "\n\t"
    return not (
        0x7F <= code <= 0x9F
        or 0x200B <= code <= 0x200F
        or 0x202A <= code <= 0x202E
        or 0x2066 <= code <= 0x2069
    )


def _picture(character: str) -> str:
    code = ord(character)
    return chr(0x2400 + code) if code < 0x20 else f"⟨U+{code:04X}⟩"


def _valid(text: str) -> str:
    """Halves of surrogate pairs, which no encoding can write, as the mark for what cannot be shown."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
