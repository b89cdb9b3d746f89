"""What nobody is trained on: perfect attempts for `env qualify`, and the documents that the page shows."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from erl_pipeline.environments.hotpotqa.environment import LAST_TURN
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tool import MAX_QUERY_CHARACTERS, SEARCH
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Document, FoundDocuments
from erl_pipeline.environments.tool_calls import MARKERS

_TURNS_LEFT = re.compile(rf"\n(\d+ turns are left\.|{re.escape(LAST_TURN)})\Z")


def gold_answer(config: HotpotQAConfig, task: Task) -> list[str]:
    """One search a turn, for as many of the pages as there are turns for, and a last turn that answers."""
    titles = [title[:MAX_QUERY_CHARACTERS] for title in task.payload["supporting"]]
    answer = " ".join(task.payload["answer"].split())
    return [*(_search(config, title) for title in titles[: config.max_turns - 1]), f"Answer: {answer}"]


def _search(config: HotpotQAConfig, title: str) -> str:
    if config.is_plain:
        return f"Search: {title}"
    return json.dumps({"name": SEARCH, "arguments": {"query": title}}).join(MARKERS)


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
