"""The flow of a training, run by Prefect's engine: its tasks, and what its page shows beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any
from urllib.parse import quote

import httpx
from prefect import flow, get_run_logger
from prefect.assets import Asset, AssetProperties
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker, emit_events_to_cloud
from prefect.futures import PrefectFuture
from prefect.logging.handlers import APILogHandler
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    temporary_settings,
)
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from prefect.tasks import MaterializingTask

from erl_pipeline.plan.listener import Listener, NullListener
from erl_pipeline.plan.runner import MOST_DEATHS, WorkerDied, can_pass
from flows.dead_drivers import FLOW
from flows.local_server import OrchestratorError, WentAway
from flows.page import RunPage
from flows.submissions import Submission, Submissions, TaskOptions
from storage.artifacts.manifest import Manifest
from storage.errors import Interrupted, PipelineError

_LOOK_SECONDS = 0.2
_STATE_SECONDS = 2.0
_TABLE_SECONDS = 10.0
_REQUEST_SECONDS = 10.0
_RECONNECTIONS = 0  # The next event tries again, and sends those before it that were not confirmed.
_KEPT = "Asked to stop; what was committed is kept"


class StageTimedOut(PipelineError):
    """A stage took longer than the configuration allows."""


def run_training(submissions: Submissions, url: str) -> None:
    """Compute what is submitted, in the flow run in which this is called, else in a new one of flow
    `training`; return after the end of the run.

    Args:
        url: of Prefect's API.

    Raises WentAway when the API goes away or refuses.
    """
    settings: dict[Any, Any] = {
        PREFECT_API_URL: url,
        # Each would make a run wait for minutes whose server is gone.
        PREFECT_CLIENT_MAX_RETRIES: 0,
        PREFECT_API_REQUEST_TIMEOUT: _REQUEST_SECONDS,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(settings), _events_that_do_not_wait(url):
        try:
            within = FlowRunContext.get()
            if within is not None and within.flow_run is not None:
                _Training(submissions, str(within.flow_run.id)).work()
            else:
                _begin_flow(submissions)
        except httpx.HTTPError as error:
            raise WentAway(f"Prefect's API at {url} went away ({error})") from error


@contextmanager
def _events_that_do_not_wait(url: str) -> Iterator[None]:
    """Report states of tasks by a client that tries once: by default Prefect's tries ten times for each
    event, for seven seconds, and keeps an ended process alive until it has tried with all of them."""
    if emit_events_to_cloud():
        yield
        return
    # Named by its URL, a worker of Prefect for events is one for each server.
    EventsWorker.set_client_override(PrefectEventsClient, api_url=url, reconnection_attempts=_RECONNECTIONS)
    try:
        yield
    finally:
        EventsWorker.set_client_override(None)


def _begin_flow(submissions: Submissions) -> None:
    ended: list[RunPage] = []

    def training(run: str, store: str) -> State[None]:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        work = _Training(submissions, str(context.flow_run.id))
        ended.append(work.page)
        work.work()
        if submissions.error is None:
            return Completed()
        if isinstance(submissions.error, Interrupted):
            return Cancelled(message=_KEPT)
        return Failed(message=f"{type(submissions.error).__name__}: {submissions.error}")

    worker = submissions.call.worker
    # The walk submits no more stages than there are workers; others wait for a limit of Prefect in a thread.
    threads: TaskRunner[Any] = ThreadPoolTaskRunner(max_workers=2 * submissions.pool.workers + 8)
    of_flow = flow(name=FLOW, flow_run_name=worker.run, task_runner=threads, persist_result=False)
    of_flow(training)(worker.run, worker.store_uri, return_state=True)
    (page,) = ended
    # A local server is about to stop.
    APILogHandler().flush()
    if missing := page.await_records():
        submissions.call.listener.warn(f"Prefect's server has not written {missing} task runs")


class _Training:
    """The work of one flow run."""

    def __init__(self, submissions: Submissions, flow_run_id: str) -> None:
        self._submissions = submissions
        self._futures: dict[str, PrefectFuture[Any]] = {}
        self._made: set[str] = set()
        """Artifacts whose task runs have completed."""
        self._ended = threading.Event()
        self.page = RunPage(submissions.call.worker, flow_run_id)

    def work(self) -> None:
        """Run the tasks of what is submitted, to the end of the run."""
        with get_client(sync_client=True) as client:
            if refused := self.page.end_left_behind(client):
                self._submissions.call.listener.warn(refused)
        watching = threading.Thread(target=copy_context().run, args=(self._watch,), name="prefect-page")
        watching.start()
        self._submissions.ready.set()
        try:
            while submission := self._submissions.take():
                self._submit(submission)
            for each in self._futures.values():
                each.wait()
        finally:
            self._ended.set()
            watching.join()
        with get_client(sync_client=True) as client:
            self.page.show_table(client)
            self.page.show_summary(client, self._submissions.work())

    def _watch(self) -> None:
        """Show the table of iterations from time to time, and stop the run that was cancelled on Prefect's
        page."""
        shown, due = 0.0, time.monotonic() + _TABLE_SECONDS
        with get_client(sync_client=True) as client:
            while not self._ended.wait(_STATE_SECONDS):
                try:
                    if self.page.is_cancelled(client):
                        self._submissions.call.stop.set()
                    if self._submissions.changed > shown and time.monotonic() > due:
                        begun = shown = time.monotonic()
                        self.page.show_table(client)
                        # Making the table of a long run in a bucket takes long; limit it to a twentieth.
                        due = time.monotonic() + max(_TABLE_SECONDS, 20 * (time.monotonic() - begun))
                except httpx.HTTPError:
                    continue  # The end of the flow run says that the API is gone.

    def _submit(self, submission: Submission) -> None:
        planned = submission.job.planned
        options = self._submissions.options.get(planned.stage.name, TaskOptions())
        attempt = _Attempts(self._submissions, submission, options, self._made)
        inputs = planned.recipe.inputs.values()
        task: MaterializingTask[[str], Any] = MaterializingTask(
            attempt.run,
            assets=[self._asset(planned.artifact_id, planned.title)],
            # Prefect finds those of the tasks that this one waits for.
            asset_deps=[self._asset(each) for each in inputs if each not in self._made],
            materialized_by="erl-pipeline",
            name=planned.stage.name,
            task_run_name=lambda: planned.title,
            tags=options.tags,
            retries=len(attempt.delays),
            retry_delay_seconds=attempt.delays,
            retry_condition_fn=lambda *_: attempt.is_to_run_again(),
            cache_policy=NO_CACHE,
            persist_result=False,
        )
        # An input whose task run failed was made by somebody else since.
        before = [self._futures[each] for each in inputs if each in self._made]
        future = task.submit(planned.artifact_id, wait_for=before, return_state=False)
        self._futures[planned.artifact_id] = future
        self.page.tasks += 1
        future.add_done_callback(attempt.hand_over)

    def _asset(self, artifact_id: str, title: str | None = None) -> Asset:
        """An artifact as Prefect names it: by its address in the store."""
        uri = self._submissions.call.worker.store_uri
        scheme, path = uri.split("://", 1) if "://" in uri else ("file", uri)
        # A key holds no percent sign.
        key = f"{scheme}://{quote(path, safe='/:').replace('%', '_')}/artifacts/{artifact_id}"
        return Asset(key=key, properties=AssetProperties(name=title) if title else None)


class _Attempts:
    """The computation of one stage, which Prefect may run several times."""

    def __init__(
        self, submissions: Submissions, submission: Submission, options: TaskOptions, made: set[str]
    ) -> None:
        self._submissions = submissions
        self._made = made
        self._submission = submission
        self._planned = submission.job.planned
        self._options = options
        given = options.retry_delay_seconds
        self._passing = tuple(self._planned.stage.retry_seconds if given is None else given)
        self.delays = [*self._passing, *[0.0] * MOST_DEATHS]
        """Seconds before each time that Prefect may run the stage again."""
        self._deaths = self._failures = 0
        self._manifest: Manifest | None = None
        self._error: BaseException | None = None

    def run(self, artifact_id: str) -> State[None]:
        """Compute the stage once, as a task."""
        call, logger = self._submissions.call, get_run_logger()
        self._error = None
        logger.info("Computing artifact %s", artifact_id)
        begun, stop = time.monotonic(), threading.Event()
        listener = _TaskListener(call.listener, logger)
        computing = self._submissions.pool.submit(self._submission.job, listener, stop)
        try:
            while not wait([computing], _LOOK_SECONDS).done:
                if call.stop.is_set():
                    stop.set()
                limit = self._options.timeout_seconds
                if limit is not None and time.monotonic() - begun > limit:
                    raise TimeoutError  # which Prefect shows as the state TimedOut
            self._manifest = computing.result()
        except BaseException as error:
            # The stage ends cleanly first: it commits, or notices that it is to stop.
            stop.set()
            wait([computing])
            self._error = error
            if isinstance(error, Interrupted):
                return Cancelled(message=_KEPT)
            if isinstance(error, TimeoutError):
                name = self._planned.stage.name
                self._error = StageTimedOut(
                    f"{self._planned.title} took longer than runner.stages.{name}.timeout_seconds "
                    f"({self._options.timeout_seconds:g} s); what was committed before it is kept"
                )
            raise
        counters = ", ".join(f"{name} {value:g}" for name, value in self._manifest.counters.items())
        logger.info("Committed in %.1f s: %s", time.monotonic() - begun, counters or "no counters")
        return Completed(message=f"Committed artifact {self._manifest.artifact_id}")

    def is_to_run_again(self) -> bool:
        """Whether the stage failed for a reason that can pass, and not too often; says so to the user."""
        error, title = self._error, self._planned.title
        if self._submissions.call.stop.is_set():
            return False
        if isinstance(error, WorkerDied) and self._deaths < MOST_DEATHS:
            self._deaths += 1
            self._submissions.call.listener.warn(f"{title}: {error}. It is computed again.")
            return True
        if error is not None and can_pass(error) and self._failures < len(self._passing):
            self._failures += 1
            self._submissions.call.listener.warn(f"{title} failed and is tried again: {error}")
            return True
        return False

    def hand_over(self, ended: PrefectFuture[Any]) -> None:
        """Give the result to the thread of the run."""
        result = self._submission.result
        if self._error is not None:
            result.set_exception(self._error)
        elif self._manifest is not None:
            self._made.add(self._manifest.artifact_id)
            result.set_result(self._manifest)
        else:
            message = f"Prefect did not run {self._planned.title}: {ended.state.name}: {ended.state.message}"
            result.set_exception(OrchestratorError(message))


class _TaskListener(NullListener):
    """Passes on what a stage reports, and writes its warnings into the log of its task run."""

    def __init__(self, listener: Listener, logger: Any) -> None:
        self._listener = listener
        self._logger = logger

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units."""
        self._logger.info("%d %s to do", total, unit)
        self._listener.counting(title, total, unit)

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""
        self._listener.advanced(title, amount, numbers)

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited this long."""
        self._listener.waiting(title, what, seconds, detail)

    def warn(self, message: str) -> None:
        """Something that a user should know."""
        self._logger.warning("%s", message)
        self._listener.warn(message)
