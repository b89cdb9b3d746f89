"""Measured numbers in documents, and the stored results that they are taken from.

`figures.yaml` lists quotes of the documents. In a quote, `{FILE:PATH FORMAT}` stands for a number of a
stored result. PATH has keys with dots between them; `*` goes to every value, and `[key=value]` to the items
of a list (or of each list) in which a key has a value. FORMAT is the number of digits, and may begin with:

- `+`: with a sign; `,`: with commas in thousands; `0.`: with the 0 before the point; `%`: in percent;
- `i`: a mean with its interval, `.665 (.648 to .682)`; `r`: several values, as their mean, least and most;
- of several values `<` shows the least, `>` the most and `m` the median; otherwise it is their mean.

In a quote with `rows`, `<row>` and `<key>` are replaced by each label and its value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

import yaml

from tests.documents.pages import ROOT, Page, pages

RESULTS = ROOT / "benchmarks/results"
MANIFEST = ROOT / "tests/documents/figures.yaml"
REASONS = ("setting", "version", "assumption", "paper", "example", "arithmetic", "limit", "format")
"""Why a number may stand in a document without a stored result: none of these was measured here."""
_UNITS = (
    r"(?:s|ms|min|h|seconds?|minutes?|hours?|[KMGT]i?B|kB|bytes"
    r"|tokens(?:/s)?|entries/s|episodes/s|times|nats|%)"
)
NUMBER = re.compile(
    r"(?<![\w.,/#-])[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.\d+"
    rf"|\d+(?=[ ]?{_UNITS}(?![\w-])))(?!\w|\.\d)"
)
"""What looks like a result: a number with a point, with commas, or before a unit."""
_HIDDEN = re.compile(
    r"^```.*?^```$"  # code blocks
    r"|<!-- begin (?P<name>\w+) -->.*?<!-- end (?P=name) -->"  # generated sections, which have their own test
    r"|<!--.*?-->|`[^`\n]+`|\]\([^)\s]*\)"  # comments, code, targets of links
    r"|arXiv \d{4}\.\d{5}|Python \d\.\d+|\b95 %",  # names, and the level of every interval
    re.S | re.M,
)
_OF_SEVERAL: dict[str, Callable[[Any], Any]] = {"<": min, ">": max, "m": median}
_PLACEHOLDER = re.compile(r"\{(?P<file>[\w/]+):(?P<path>[^{}]+) (?P<format>[^{} ]+)\}")


@dataclass(frozen=True)
class Text:
    """A page with each white space made one blank: as it is `shown`, and the same with NUL for what is no
    sentence."""

    shown: str
    sentences: str


@cache
def text_of(path: str) -> Text:
    """A page as it is compared."""
    shown = Page(path).text
    sentences = _HIDDEN.sub(lambda found: "\0" * len(found[0]), shown)
    kept = [not (each.isspace() and shown[place - 1 : place].isspace()) for place, each in enumerate(shown)]
    one = [" " if each.isspace() else each for each in shown]
    two = [" " if each.isspace() else each for each in sentences]
    return Text(
        "".join(each for each, keep in zip(one, kept, strict=True) if keep),
        "".join(each for each, keep in zip(two, kept, strict=True) if keep),
    )


@dataclass(frozen=True)
class Quote:
    """A quote with its numbers filled in: its text, and where in it the numbers are."""

    page: str
    text: str
    numbers: tuple[tuple[int, int], ...]


@cache
def manifest() -> dict[str, Any]:
    """The content of `figures.yaml`."""
    read: dict[str, Any] = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return read


@cache
def result(file: str) -> Any:
    """A stored result, by its path below `benchmarks/results` without suffix."""
    return json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))


def quotes() -> Iterator[Quote]:
    """All quotes of the manifest, for each of their pages."""
    for entry in manifest()["quotes"]:
        for row, key in (entry.get("rows") or {"": ""}).items():
            filled = entry["text"].replace("<row>", row).replace("<key>", key)
            for page in entry["pages"]:
                yield fill(page, " ".join(filled.split()))


def fill(page: str, template: str) -> Quote:
    """A quote from its template. Raises ValueError for one without a reference."""
    text, numbers, rest = "", [], 0
    for found in _PLACEHOLDER.finditer(template):
        text += template[rest : found.start()]
        value = look_up(result(found["file"]), found["path"])
        begin, text = len(text), text + as_shown(value, found["format"])
        numbers.append((begin, len(text)))
        rest = found.end()
    if not numbers or "{" in template[rest:]:
        raise ValueError(
            f"{page}: a quote without a reference, or with one that is not understood: {template}"
        )
    return Quote(page, text + template[rest:], tuple(numbers))


def look_up(value: Any, path: str) -> Any:
    """What a path leads to; a list where the path has a `*`. Raises LookupError where there is nothing."""
    steps = re.findall(r"\[[^\]]*\]|[^.\[\]]+", path)
    many, found = False, [value]
    for step in steps:
        if step == "*":
            many, found = True, [each for one in found for each in _values(one)]
        elif step.startswith("["):
            key, _, wanted = step[1:-1].partition("=")
            items = [each for one in found for each in (one if isinstance(one, list) else [one])]
            found = [each for each in items if str(each[key]) == wanted]
        else:
            found = [one[int(step)] if isinstance(one, list) else one[step] for one in found]
    if not found or (len(found) > 1 and not many):
        raise LookupError(f"{path}: {len(found)} values")
    return found if many else found[0]


def _values(one: Any) -> Any:
    return one.values() if isinstance(one, dict) else one


def as_shown(value: Any, how: str) -> str:
    """A value as a document writes it."""
    kind, digits = re.fullmatch(r"([+,%irm<>-]*(?:0\.)?)(\d)", how).groups()  # type: ignore[union-attr]
    if "i" in kind:
        value = value.get("summary", value)
        ends = f"{_number(value['low'], '', digits)} to {_number(value['high'], '', digits)}"
        return f"{_number(value['mean'], kind, digits)} ({ends})"
    if "r" in kind:
        ends = f"{_number(min(value), kind, digits)} to {_number(max(value), kind, digits)}"
        return f"{_number(fmean(value), kind, digits)} ({ends})"
    if isinstance(value, list):
        one = [each for sign, each in _OF_SEVERAL.items() if sign in kind]
        value = (one or [fmean])[0](value)
    return _number(value, kind, digits)


def _number(value: float, kind: str, digits: str) -> str:
    if "%" in kind:
        return f"{100 * value:{'+' if '+' in kind else ''}.{digits}f} %"
    sign, comma = "+" if "+" in kind else "", "," if "," in kind else ""
    shown = f"{value:{sign}{comma}.{digits}f}"
    return shown if "0." in kind else re.sub(r"^([+-]?)0\.", r"\1.", shown)


def places(text: str, part: str) -> Iterator[int]:
    """Where a part is found in a text."""
    place = text.find(part)
    while place >= 0:
        yield place
        place = text.find(part, place + 1)


def exempt() -> Iterator[tuple[str, str, str]]:
    """Page, reason and quote of every exemption."""
    for page, reasons in manifest()["not_measured"].items():
        for reason, texts in reasons.items():
            for text in texts:
                yield page, reason, " ".join(text.split())


def looked_through() -> list[str]:
    """The pages whose numbers need a source."""
    return [page.path for page in pages() if re.match(r"README|docs/|benchmarks/README", page.path)]


def without_source(path: str) -> list[str]:
    """The numbers of a page that look like results and neither stand in a quote nor are exempt, each with the
    words around it."""
    text = text_of(path)
    covered = bytearray(len(text.shown))
    for quote in quotes():
        if quote.page == path:
            for place in places(text.shown, quote.text):
                for begin, end in quote.numbers:
                    covered[place + begin : place + end] = b"\1" * (end - begin)
    for page, _, part in exempt():
        if page == path:
            for place in places(text.shown, part):
                covered[place : place + len(part)] = b"\1" * len(part)
    return [
        text.shown[max(0, found.start() - 40) : found.end() + 20]
        for found in NUMBER.finditer(text.sentences)
        if not all(covered[found.start() : found.end()])
    ]
