"""The message that answers a search: how it is written, and how the user interface reads it back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from erl_pipeline.environments.hotpotqa.question_file import Passage
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Document, FoundDocuments

_LAST_TURN = "This is the last turn: answer now."
_TURNS_LEFT = re.compile(rf"\n(\d+ turns are left\.|{re.escape(_LAST_TURN)})\Z")


def pages_as_text(pages: Sequence[Passage], characters: int) -> str:
    """The beginnings of pages, numbered."""
    if not pages:
        return "No page was found."
    return "\n".join(
        f"[{number}] {page.title}: {_beginning(page.text, characters)}"
        for number, page in enumerate(pages, start=1)
    )


def turns_left_as_text(left: int) -> str:
    """How many turns are left, as the last line of a message."""
    return f"{left} turns are left." if left > 1 else _LAST_TURN


def documents_in(config: HotpotQAConfig, task: Task, message: str) -> FoundDocuments | None:
    """The pages in a message, with a mark on those that the question needs; None where it has none."""
    if not message.startswith("[1] "):
        return None
    ending = _TURNS_LEFT.search(message)
    text = message[: ending.start()] if ending else message
    parts: list[str] = []
    for line in text.split("\n"):
        mark = f"[{len(parts) + 1}] "
        if line.startswith(mark):
            parts.append(line.removeprefix(mark))
        else:
            parts[-1] += f"\n{line}"
    return FoundDocuments(
        [_document(part, task.payload["supporting"]) for part in parts], ending[1] if ending else ""
    )


def _document(text: str, supporting: Sequence[str]) -> Document:
    # A title may have a colon in it; the titles of needed pages are known.
    known = next((title for title in supporting if text.startswith(f"{title}: ")), None)
    title = text.partition(": ")[0] if known is None else known
    return Document(title, text.removeprefix(f"{title}: "), needed=known is not None)


def _beginning(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters].rstrip()}..."
