"""The few elements of Markdown that the reference pages use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; vertical bars in cells are escaped, and line breaks become spaces."""
    lines = [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Text as inline code, even if it contains backticks."""
    fence = "``" if "`" in text else "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def plain(text: str) -> str:
    """Text of a docstring or a help message as one paragraph. Lines are joined, and characters such as `<`
    are escaped outside code, so that `<answer>` is shown and not treated as HTML."""
    joined = " ".join(text.split())
    parts = re.split(r"(`+[^`]*`+)", joined)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return re.sub(r"([<*_\[\]])", r"\\\1", text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
