"""How a flow run ended, in words for the person who scheduled it."""

from __future__ import annotations

from flows.scheduled_run import SKIPPED

CANCELLED = "Cancelled"
"""Prefect's name of a state; also of a flow run that was not begun, since the one before it still ran."""

_LIMIT = "concurrency limit"


def is_skip(state: str | None, message: str | None) -> bool:
    """Whether a flow run did nothing because another one was at work."""
    return state == SKIPPED or (state == CANCELLED and _LIMIT in (message or ""))


def in_words(state: str | None, message: str | None) -> str:
    """What became of a flow run, from the name and the message of its last state."""
    if state is None:
        return ""
    if state == SKIPPED:
        return f"skipped: {(message or '').removeprefix('Skipped: ')}"
    if is_skip(state, message):
        return "skipped: the one before it was still at work"
    return f"{state.lower()}: {message}" if message else state.lower()
