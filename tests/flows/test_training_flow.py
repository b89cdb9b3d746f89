"""The flow of a training where Prefect's API fails; no server is needed."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Event
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import ObjectNotFound
from prefect.states import Failed

from flows import training_flow
from flows.page import RunPage
from flows.submissions import Submissions
from storage.errors import StoreError
from tests.flows.small_plans import Recorded

REFUSED = httpx.HTTPStatusError(
    "503 Service Unavailable", request=httpx.Request("POST", "http://api"), response=httpx.Response(503)
)


def failing(error: Exception) -> Any:
    """A function that fails, whatever it is given."""

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise error

    return fail


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's API answers that it is well, and nothing else is asked."""
    monkeypatch.setattr(training_flow, "get_client", lambda **_: nullcontext())
    monkeypatch.setattr(training_flow, "answers", lambda _url: True)
    monkeypatch.setattr(RunPage, "end_left_behind", lambda *_: None)


def test_a_flow_run_that_cannot_begin_says_why(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the run would wait for ever for its beginning: Prefect gives such an error as a state."""
    late = httpx.ReadTimeout("the read operation timed out")
    monkeypatch.setattr(training_flow, "TRAINING", lambda *_, **__: Failed(data=late))
    with pytest.raises(httpx.ReadTimeout):
        training_flow._begin_flow(submissions)


@pytest.mark.usefixtures("offline")
def test_a_refused_last_table_is_a_warning(
    submissions: Submissions, listener: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunPage, "show_table", failing(REFUSED))
    submissions.end(None)
    training_flow._work(submissions, uuid4())
    lacks = "Prefect's page lacks the last table or summary of run small: 503 Service Unavailable"
    assert listener.told == [("warn", lacks)]


@pytest.mark.usefixtures("offline")
def test_a_cancellation_is_heard_after_errors_that_pass(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, errors = Event(), [StoreError("no answer"), ObjectNotFound(Exception("no flow run")), REFUSED]

    def is_cancelled(*_: Any) -> bool:
        if errors:
            raise errors.pop()
        ended.set()
        return True

    monkeypatch.setattr(training_flow, "_STATE_SECONDS", 0.01)
    monkeypatch.setattr(RunPage, "is_cancelled", is_cancelled)
    training_flow._watch(submissions, RunPage(submissions.call.worker, uuid4()), ended)
    assert submissions.call.stop.is_set()
