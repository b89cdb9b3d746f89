"""A perfect attempt at a question: its supporting pages searched for by their titles, then the answer."""

from __future__ import annotations

import json

from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tool import MAX_QUERY_CHARACTERS, SEARCH
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.tool_calls import MARKERS


def gold_answer(config: HotpotQAConfig, task: Task) -> list[str]:
    """One search a turn, for as many of the pages as there are turns for, and a last turn that answers."""
    titles = [title[:MAX_QUERY_CHARACTERS] for title in task.payload["supporting"]]
    answer = " ".join(task.payload["answer"].split())
    return [*(_search(config, title) for title in titles[: config.max_turns - 1]), f"Answer: {answer}"]


def _search(config: HotpotQAConfig, title: str) -> str:
    if config.is_plain:
        return f"Search: {title}"
    return json.dumps({"name": SEARCH, "arguments": {"query": title}}).join(MARKERS)
