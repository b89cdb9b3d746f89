"""The documents of the repository and their content: links, code blocks, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = "erl-pipeline"
_FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.S | re.M)
_INLINE = re.compile(r"(?<!`)`(?P<text>[^`\n]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]*)\)")
_HEADING = re.compile(r"^#+ (?P<title>.*)$", re.M)


@dataclass(frozen=True)
class Command:
    """A call of the program as a document shows it."""

    page: str
    words: tuple[str, ...]
    """Without the program's name."""
    whole: bool
    """Whether it is a line of its own that can be copied; within a sentence arguments may be left out."""

    def __str__(self) -> str:
        return f"{self.page}: {PROGRAM} {shlex.join(self.words)}"


@dataclass(frozen=True)
class Page:
    """A document, by its path in the repository."""

    path: str

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without code blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self) -> Iterator[tuple[str, str]]:
        """Language and text of each code block."""
        for found in _FENCE.finditer(self.text):
            yield found["language"], found["text"]

    def links(self) -> list[str]:
        """Targets of the links and pictures that lead to no other host."""
        targets = (found["target"] for found in _LINK.finditer(_INLINE.sub("", self.prose)))
        return [target for target in targets if not re.match(r"[a-z]+:", target)]

    def anchors(self) -> set[str]:
        """The anchors of the page, as GitHub and the site make them from headings."""
        return {_anchor(found["title"]) for found in _HEADING.finditer(self.prose)}

    def commands(self) -> Iterator[Command]:
        """Every call of the program: lines of code blocks, and code within sentences."""
        for language, text in self.blocks():
            if language in ("", "bash", "console"):
                for line in command_lines(text):
                    yield Command(self.path, command_words(line), whole=True)
        for found in _INLINE.finditer(self.prose):
            if found["text"].startswith(f"{PROGRAM} "):
                yield Command(self.path, command_words(found["text"]), whole=False)


def pages() -> list[Page]:
    """All documents, except pages of generated results."""
    folders = ("", "docs", "configs", "benchmarks", "examples", "infra")
    found = [path for folder in folders for path in (ROOT / folder).glob("*.md" if not folder else "**/*.md")]
    return [Page(str(path.relative_to(ROOT))) for path in sorted(set(found)) if "results" not in path.parts]


def command_lines(block: str) -> list[str]:
    """Calls of the program in a code block, after a prompt or without one; continued lines joined."""
    joined = block.replace("\\\n", " ")
    lines = (line.removeprefix("$ ").strip() for line in joined.splitlines())
    return [line for line in lines if line.startswith(f"{PROGRAM} ")]


def command_words(line: str) -> tuple[str, ...]:
    """The words of a call as a shell splits them, without the program's name and without a comment."""
    return tuple(shlex.split(line, comments=True))[1:]


def _anchor(title: str) -> str:
    words = re.sub(r"[`*]|\[|\]\([^)]*\)", "", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
