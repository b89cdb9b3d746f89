"""Requests to forget an entry, as recipes. Plans look up a run's requests, so to keep them fast this module
imports neither polars nor pyarrow."""

from __future__ import annotations

from collections.abc import Iterable

from storage.artifacts.recipe import Recipe
from storage.runs.ledger import LedgerEntry, latest_entries

REQUEST_STAGE = "forget_request"
"""Stage of a request: which entry to forget, and why."""

FORGET_STAGE, FORGET_VERSION = "forget_memory", 2
"""Stage that removes the entry that a request names, and the stage's version."""

REQUEST_INPUT = "request"
"""Name of the input that is the request."""


def request_recipe(version: str, entry_id: str, reason: str) -> Recipe:
    """The recipe of the request to forget an entry, made when `version` was the newest memory."""
    from storage.memory.chain import PARENT_INPUT

    return Recipe(
        REQUEST_STAGE, 1, {"entry_id": entry_id, "reason": reason}, {PARENT_INPUT: version}, 0, kind="request"
    )


def forget_recipe(parent: str, request_id: str) -> Recipe:
    """The recipe of the memory version that fulfils a request."""
    from storage.memory.chain import PARENT_INPUT

    return Recipe(
        FORGET_STAGE,
        FORGET_VERSION,
        {},
        {PARENT_INPUT: parent, REQUEST_INPUT: request_id},
        0,
        kind="memory",
    )


def forget_requests(entries: Iterable[LedgerEntry]) -> dict[int, tuple[str, ...]]:
    """Iteration -> artifact ids of the requests to be fulfilled after it, in order."""
    requests: dict[int, list[tuple[str, str]]] = {}
    for entry in latest_entries(entries):
        if entry.kind == "request":
            requests.setdefault(entry.iteration or 0, []).append((entry.key, entry.artifact_id))
    return {
        iteration: tuple(artifact_id for _, artifact_id in sorted(of)) for iteration, of in requests.items()
    }
