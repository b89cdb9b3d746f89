from __future__ import annotations

import pytest

from flows.schedule_words import in_words, is_skip


@pytest.mark.parametrize(
    ("state", "message", "skip", "words"),
    [
        (None, None, False, ""),
        ("Completed", "Committed through iteration 3", False, "completed: Committed through iteration 3"),
        ("Running", None, False, "running"),
        (
            "Cancelled",
            "Deployment concurrency limit reached.",
            True,
            "skipped: the one before it was still at work",
        ),
        ("Cancelled", "Asked to stop", False, "cancelled: Asked to stop"),
        (
            "Skipped",
            "Skipped: run one is being worked on by process 3 on host.",
            True,
            "skipped: run one is being worked on by process 3 on host.",
        ),
    ],
)
def test_how_a_flow_run_ended_is_said_in_words(
    state: str | None, message: str | None, skip: bool, words: str
) -> None:
    assert (is_skip(state, message), in_words(state, message)) == (skip, words)
