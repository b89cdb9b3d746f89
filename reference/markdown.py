"""The little Markdown that the pages of the reference are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks within cells are made safe."""
    lines = [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """Text as code, also where it has backticks of its own."""
    fence = "``" if "`" in text else "`"
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def plain(text: str) -> str:
    """Text of a docstring or a help message as one paragraph: line breaks joined, and `<` outside code made
    safe, so that `<answer>` is shown and is not taken for HTML."""
    joined = " ".join(text.split())
    parts = re.split(r"(`+[^`]*`+)", joined)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return re.sub(r"([<*_\[\]])", r"\\\1", text)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
