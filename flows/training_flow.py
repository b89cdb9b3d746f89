"""The flow of a training, run by Prefect's engine: its tasks, and what its page shows beside them."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from copy import copy
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
from prefect import flow
from prefect.assets import Asset, AssetProperties
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import RunInput, State, TaskRunResult
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.context import FlowRunContext
from prefect.events.clients import NullEventsClient, PrefectEventsClient
from prefect.events.worker import EventsWorker, emit_events_to_cloud
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging.handlers import APILogHandler
from prefect.results import ResultRecord  # type: ignore[attr-defined]  # it is not in their __all__
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOCAL_STORAGE_PATH,
    PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW,
    temporary_settings,
)
from prefect.states import Cancelled, Completed, Failed
from prefect.tasks import MaterializingTask

from erl_pipeline.plan.runner import MOST_DEATHS, Made, StageJob, WorkerDied
from erl_pipeline.plan.stage import Stage
from flows.local_server import OrchestratorError, WentAway, answers, refusal
from flows.page import FLOW, RunPage
from flows.places import StagePlace
from flows.stage_worker import STOPPED, compute_stage, may_pass
from flows.submissions import Submission, Submissions, TaskOptions
from storage.errors import Interrupted, PipelineError

_LOOK_SECONDS = 0.1
_STATE_SECONDS = 2.0
_TABLE_SECONDS = 10.0
_REQUEST_SECONDS = 10.0
_RETRIES = 2
"""How often the engine asks again, after 2 and 4 seconds or when the answer says to, where a server is busy
or its gateway says that it is away. More would make a run wait whose server is gone."""
_TRIES_FOR_SLOTS = 5
"""How often the engine asks again for a slot of a limit when the server says that its database is busy."""
_SLOT_SECONDS = 5.0
"""After how many seconds a stage that has not begun, perhaps since its process starts, waits for a slot."""
_LIMITS = "`prefect concurrency-limit ls` shows the limits"
_NO_STOP = "Prefect does not end this wait; press Ctrl-C again to end the command at once"
_RECONNECTIONS = 0  # The next event tries again, and sends those before it that were not confirmed.


_NO_API = "http://127.0.0.1:9/api"
"""An address where nothing answers: Prefect's engine needs one, also where there never was an API."""


class StageTimedOut(PipelineError):
    """A stage took longer than the configuration allows."""


def run_training(submissions: Submissions, url: str) -> None:
    """Compute what is submitted, in the flow run in which this is called, else in a new one of flow
    `training`; return after the end of the run.

    Args:
        url: of Prefect's API.

    Raises WentAway when the API goes away or fails, or somebody deletes the flow run; OrchestratorError when
    it refuses this user at first.
    """
    with _reaching(url, _RETRIES):
        try:
            within = FlowRunContext.get()
            if within is not None and within.flow_run is not None:
                _work(submissions, within.flow_run.id)
            else:
                _begin_flow(submissions)
        except httpx.HTTPError as error:
            if not submissions.ready.is_set() and (refused := refusal(url, error)):
                raise refused from error
            raise WentAway(f"Prefect's API at {url} went away ({error})") from error
        except ObjectNotFound as error:
            raise WentAway("Prefect no longer has this flow run: somebody has deleted it") from error
        # Else the last events would be sent when the process ends, which prints that they are.
        EventsWorker.instance().drain()


def compute_without_api(submissions: Submissions, url: str) -> None:
    """Have Prefect's engine compute what is submitted, to the end of the run, after its API went away.

    Args:
        url: of the API; empty if it went away before it had one.
    """
    ignoring: dict[Any, Any] = {PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore"}
    with temporary_settings(ignoring), _reaching(url or _NO_API, 0):
        compute_submitted(submissions)


@contextmanager
def _reaching(url: str, retries: int) -> Iterator[None]:
    """Use the API at this address, and do not wait long where it does not answer."""
    settings: dict[Any, Any] = {
        PREFECT_API_URL: url,
        PREFECT_CLIENT_MAX_RETRIES: retries,
        PREFECT_API_REQUEST_TIMEOUT: _REQUEST_SECONDS,
        # Else each process first asks for the server's version, and cannot begin where that fails.
        PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False,
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
    }
    with temporary_settings(settings):
        if emit_events_to_cloud():
            yield
            return
        # By default Prefect's client tries ten times for each event, for seven seconds, and keeps an ended
        # process alive until it has tried with all of them. Named by its URL, a worker of Prefect for events
        # is one for each server.
        if url == _NO_API:
            EventsWorker.set_client_override(NullEventsClient)
        else:
            EventsWorker.set_client_override(
                PrefectEventsClient, api_url=url, reconnection_attempts=_RECONNECTIONS
            )
        # Begun here, it knows the URL; a thread that passes on events of a worker process does not.
        EventsWorker.instance()
        try:
            yield
        finally:
            EventsWorker.set_client_override(None)


_BEGUN: ContextVar[Submissions] = ContextVar("the submissions of the flow run that begins")
"""Beside the parameters of the flow, which Prefect stores and sends to worker processes."""


def run_stages(run: str, store: str) -> State[None]:
    """Compute the stages of a run as tasks.

    Args:
        run: its name.
        store: where its artifacts are.
    """
    context, submissions = FlowRunContext.get(), _BEGUN.get()
    assert context is not None
    assert context.flow_run is not None
    page = _work(submissions, context.flow_run.id)
    # A local server is about to stop.
    APILogHandler().flush()
    if missing := page.await_records():
        submissions.call.listener.warn(f"Prefect's server has not written {missing} task runs")
    if submissions.error is None:
        return Completed()
    if isinstance(submissions.error, Interrupted):
        return Cancelled(message=STOPPED)
    return Failed(message=f"{type(submissions.error).__name__}: {submissions.error}")


# Prefect sends the flow to worker processes; they find its function by this module's name for it.
# Its tasks are what is tried again. By a user's PREFECT_FLOW_DEFAULT_RETRIES a flow run that failed would
# wait for a retry for ever, since its command has ended.
TRAINING = flow(name=FLOW, flow_run_name="{run}", persist_result=False, retries=0)(run_stages)
"""The flow of a training that no schedule has begun. A user's hooks are added as to any flow of Prefect, such
as by `@TRAINING.on_failure`."""


def _begin_flow(submissions: Submissions) -> None:
    token = _BEGUN.set(submissions)
    try:
        state = TRAINING(submissions.call.worker.run, submissions.call.worker.store_uri, return_state=True)
    finally:
        _BEGUN.reset(token)
    if not submissions.ready.is_set():
        # The run still waits for its flow run to begin. This raises what has prevented that.
        state.result()


def _work(submissions: Submissions, flow_run_id: UUID) -> RunPage:
    """Run the tasks of what is submitted, to the end of the run; what the page shows beside them is sent."""
    page = RunPage(submissions.call.worker, flow_run_id)
    with get_client(sync_client=True) as client:
        if refused := page.end_left_behind(client):
            submissions.call.listener.warn(refused)
    ended = threading.Event()
    watching = threading.Thread(
        target=copy_context().run, args=(_watch, submissions, page, ended), name="prefect-page"
    )
    watching.start()
    submissions.ready.set()
    try:
        compute_submitted(submissions, page)
    finally:
        ended.set()
        watching.join()
    try:
        with get_client(sync_client=True) as client:
            page.show_table(client)
            page.show_summary(client, submissions.work())
    except (httpx.HTTPError, PipelineError) as error:
        url = str(PREFECT_API_URL.value())
        if not answers(url):
            raise WentAway(f"Prefect's API at {url} went away ({error})") from error
        submissions.call.listener.warn(
            f"Prefect's page lacks the last table or summary of run {submissions.call.worker.run}: {error}"
        )
    return page


def _watch(submissions: Submissions, page: RunPage, ended: threading.Event) -> None:
    """Show the table of iterations from time to time, and stop the run that was cancelled on Prefect's
    page."""
    shown, due = 0.0, time.monotonic() + _TABLE_SECONDS
    with get_client(sync_client=True) as client:
        while not ended.wait(_STATE_SECONDS):
            try:
                if page.is_cancelled(client):
                    submissions.call.stop.set()
                if submissions.changed > shown and time.monotonic() > due:
                    begun = shown = time.monotonic()
                    page.show_table(client)
                    # Making the table of a long run in a bucket takes long; limit it to a twentieth.
                    due = time.monotonic() + max(_TABLE_SECONDS, 20 * (time.monotonic() - begun))
            except (httpx.HTTPError, PrefectException, PipelineError):
                # The end of the flow run says that the API is gone. A store can be away for a moment, and a
                # flow run that somebody has deleted is not found: neither is a reason to look no more.
                continue


def compute_submitted(submissions: Submissions, page: RunPage | None = None) -> None:
    """Have Prefect's engine compute what is submitted, to the end of the run.

    Args:
        page: of the flow run; None if Prefect's API went away before there was one.
    """
    tasks = _StageTaskRuns(submissions, page)
    with ThreadPoolExecutor(submissions.pool.workers + 1, thread_name_prefix="task") as threads:
        while submissions.error is None and (submission := submissions.take()):
            threads.submit(copy_context().run, tasks.compute, submission)


class _StageTaskRuns:
    """The task runs of one flow run."""

    def __init__(self, submissions: Submissions, page: RunPage | None) -> None:
        self._submissions = submissions
        self._call = submissions.call
        self._page = page
        self._made: dict[str, tuple[UUID, str]] = {}
        """Artifacts, and the task runs that have made them with their titles."""
        self._tasks: dict[tuple[str, TaskOptions], MaterializingTask[Any, Any]] = {}
        """The tasks of stages, without their assets."""
        # Made once: Prefect reads all its settings again for each change, which takes longer than a task.
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: _TRIES_FOR_SLOTS}):
            self._context = copy_context()

    def compute(self, submission: Submission) -> None:
        """Compute a stage, again where its worker dies, and give the result to the thread of the run. Where
        Prefect's API is gone, the limits of tags do not hold."""
        planned, deaths = submission.job.planned, 0
        title, options = planned.title, self._submissions.options.get(planned.stage.name, TaskOptions())
        if self._page is None:  # Prefect would wait for ever for a slot of an API whose URL it does not know.
            options = _without_tags(options)
        while True:
            try:
                with self._submissions.pool.taken(submission.job) as place:
                    made = self._compute(submission.job, place, options)
            except (WorkerDied, ConcurrencySlotAcquisitionError) as error:
                if options.tags and not answers(str(PREFECT_API_URL.value())):
                    options = _without_tags(options)
                    self._call.listener.warn(
                        f"{title}: {error}. Prefect's API does not answer: the stage is computed again, "
                        "without the limits of its tags."
                    )
                    continue
                deaths += 1
                if deaths <= MOST_DEATHS and not self._call.stop.is_set():
                    self._call.listener.warn(f"{title}: {error}. It is computed again.")
                    continue
                submission.result.set_exception(error)
            except BaseException as error:  # The future hands it to the thread of the run.
                submission.result.set_exception(error)
            else:
                submission.result.set_result(made)
            return

    def _task(self, stage: Stage[Any], options: TaskOptions) -> MaterializingTask[Any, Any]:
        """The task of a stage, to which its assets are to be added. It is made once: to make its key, Prefect
        parses the source of the function, which takes about a millisecond."""
        if (stage.name, options) not in self._tasks:
            self._tasks[stage.name, options] = MaterializingTask(
                compute_stage,
                assets=[],
                materialized_by="erl-pipeline",
                name=stage.name,
                task_run_name="{title}",
                tags=options.tags,
                retries=len(_delays(stage, options)),
                retry_delay_seconds=0,  # `compute_stage` waits.
                retry_condition_fn=may_pass,
                cache_policy=NO_CACHE,
                persist_result=False,
                # Without it, each task asks the API where to store errors, and waits even if the API is gone.
                result_storage=PREFECT_LOCAL_STORAGE_PATH.value() if self._page is None else None,
            )
        return copy(self._tasks[stage.name, options])

    def _compute(self, job: StageJob, place: StagePlace, options: TaskOptions) -> Made:
        planned = job.planned
        inputs = tuple(planned.recipe.inputs.values())
        task = self._task(planned.stage, options)
        task.assets = [self._asset(planned.artifact_id, planned.title)]
        # Prefect finds some of these by itself; it takes equal ones for one.
        task.asset_deps = [self._asset(each, self._made.get(each, (None, None))[1]) for each in inputs]
        parameters = {
            "title": planned.title,
            "inputs": inputs,
            "work": place.work(job),
            "seconds": options.timeout_seconds,
            "delays": _delays(planned.stage, options),
        }
        # The walk has waited for these already.
        before: set[RunInput] = {
            TaskRunResult(id=self._made[each][0]) for each in inputs if each in self._made
        }
        future = self._context.copy().run(
            place.submit, task, parameters=parameters, dependencies={"inputs": before}
        )
        done, asked = threading.Event(), time.monotonic()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(_LOOK_SECONDS):
            place.look()
            waited = time.monotonic() - asked
            if options.tags and not place.begun and waited > _SLOT_SECONDS:
                slot = f"a slot of Prefect's limits for {', '.join(options.tags)}"
                stopping = "its process ends" if place.ends_unbegun else _NO_STOP
                detail = stopping if self._call.stop.is_set() else _LIMITS
                self._call.listener.waiting(planned.title, slot, waited, detail)
        place.look()
        try:
            state = place.final_state(future)
        except WorkerDied as error:
            unbegun = self._call.stop.is_set() and not place.begun
            if self._page is not None:
                message = STOPPED if unbegun else str(error)
                self._page.crashed(task, future.task_run_id, planned.title, message)
            if unbegun:
                raise Interrupted from error
            raise
        if self._page is not None:
            self._page.tasks += 1
        if state.is_cancelled():
            raise Interrupted
        if state.name == "TimedOut":
            name = planned.stage.name
            raise StageTimedOut(
                f"{planned.title} took longer than runner.stages.{name}.timeout_seconds "
                f"({options.timeout_seconds:g} s); what was committed before it is kept"
            )
        found = _returned(state)
        if isinstance(found, BaseException):
            raise found
        if not isinstance(found, Made):
            raise OrchestratorError(f"Prefect did not run {planned.title}: {state.name}: {state.message}")
        self._made[planned.artifact_id] = (future.task_run_id, planned.title)
        return found

    def _asset(self, artifact_id: str, title: str | None = None) -> Asset:
        """An artifact as Prefect names it: by its address in the store."""
        uri = self._call.worker.store_uri
        scheme, path = uri.split("://", 1) if "://" in uri else ("file", uri)
        # A key holds no percent sign.
        key = f"{scheme}://{quote(path, safe='/:').replace('%', '_')}/artifacts/{artifact_id}"
        return Asset(key=key, properties=AssetProperties(name=title) if title else None)


def _returned(state: State[Any]) -> Any:
    """What a task returned or raised. `State.result` has an event loop in another thread look for it."""
    return state.data.result if isinstance(state.data, ResultRecord) else state.result(raise_on_failure=False)


def _delays(stage: Stage[Any], options: TaskOptions) -> tuple[float, ...]:
    return stage.retry_seconds if options.retry_delay_seconds is None else options.retry_delay_seconds


def _without_tags(options: TaskOptions) -> TaskOptions:
    return options.model_copy(update={"tags": ()})
