"""The flow of a training where Prefect's API fails; no server is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from runpy import run_path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_FLOW_DEFAULT_RETRIES, temporary_settings
from prefect.states import Failed

from erl_pipeline.plan.runner import StageJob, WorkerDied
from flows import training_flow
from flows.local_server import OrchestratorError, WentAway
from flows.page import RunPage
from flows.submissions import Submissions, TaskOptions
from flows.training_flow import run_training
from storage.errors import Interrupted, StoreError
from tests.flows.small_plans import WRITE, Recorded, planned

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


@contextmanager
def refusing_server(status: int) -> Iterator[str]:
    """The URL of an API that is well, and answers everything else with this status."""

    class Refuse(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200 if self.path.endswith("/health") else status)
            self.send_header("Retry-After", "0.01")
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"true")

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/api"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("status", "raised", "message"),
    [
        (401, OrchestratorError, "refuses this user .* PREFECT_API_AUTH_STRING"),
        (503, WentAway, "went away"),
    ],
)
def test_a_first_request_that_is_not_answered_well_is_told_of(
    status: int, raised: type[Exception], message: str, submissions: Submissions
) -> None:
    """The server's health needs no password, and no question for its version is between."""
    with refusing_server(status) as url, pytest.raises(raised, match=message) as caught:
        run_training(submissions, url)
    assert type(caught.value) is raised


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


class WaitsForSlot:
    """A place whose stage does not begin. The run is asked to stop at the second look, and the process of the
    place ends at the fourth."""

    begun = False

    def __init__(self, stop: Event, ends_unbegun: bool) -> None:
        self.ends_unbegun = ends_unbegun
        self._stop = stop
        self._looks = 0
        self._ended: Future[None] = Future()

    def work(self, _job: StageJob) -> Any:
        return None

    def submit(self, _task: Any, **_options: Any) -> Any:
        return self

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        self._ended.add_done_callback(done)

    def look(self) -> None:
        self._looks += 1
        if self._looks == 2:
            self._stop.set()
        if self._looks == 4:
            self._ended.set_result(None)

    def final_state(self, _future: Any) -> Any:
        raise WorkerDied("the worker process ended abruptly")


@pytest.mark.parametrize(
    ("ends_unbegun", "stopping"),
    [
        (True, "its process ends"),
        (False, "Prefect does not end this wait; press Ctrl-C again to end the command at once"),
    ],
)
def test_a_stage_that_waits_for_a_slot_says_so_and_is_interrupted(
    submissions: Submissions,
    listener: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    ends_unbegun: bool,
    stopping: str,
) -> None:
    monkeypatch.setattr(training_flow, "_SLOT_SECONDS", 0.0)
    place: Any = WaitsForSlot(submissions.call.stop, ends_unbegun)
    tasks = training_flow._StageTaskRuns(submissions, None)
    job = StageJob(planned(WRITE, "one"), submissions.call.worker)
    with pytest.raises(Interrupted):
        tasks._compute(job, place, TaskOptions(tags=("gpu", "night")))
    waits = ("waiting", "write one of iteration 1", "a slot of Prefect's limits for gpu, night")
    before = (*waits, "`prefect concurrency-limit ls` shows the limits")
    after = (*waits, stopping)
    assert listener.told == [before, after, after, after]


def test_a_users_default_retries_of_flows_are_not_those_of_a_training() -> None:
    """Its flow run would stay `AwaitingRetry` when its command has ended."""
    with temporary_settings({PREFECT_FLOW_DEFAULT_RETRIES: 2}):
        assert run_path(training_flow.__file__)["TRAINING"].retries == 0
