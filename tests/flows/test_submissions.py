"""Stages on their way from the thread of a run to that of its flow."""

from __future__ import annotations

from threading import Thread

from flows.submissions import Submission, Submissions


def test_the_end_of_a_run_is_heard_as_often_as_somebody_asks(submissions: Submissions) -> None:
    """Where Prefect's API goes away after the last stage, the flow is computed without it: by another loop,
    which asks again."""
    taken: list[Submission | None] = []
    submissions.end(None)
    taken.append(submissions.take())
    again = Thread(target=lambda: taken.append(submissions.take()), daemon=True)
    again.start()
    again.join(5.0)
    assert taken == [None, None]
