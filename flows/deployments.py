"""Prefect deployments for the runs of a store: making, pausing and removing them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import httpx
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.server.schemas import schedules
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema

from flows import scheduled
from flows.local_server import OrchestratorError, answers, refusal
from flows.scheduled_run import SKIPPED, Overlap
from storage.errors import InputError

FlowName = Literal["train", "iteration", "evaluate", "learn", "maintain"]

WORK_POOL = "erl-pipeline"
"""The work pool whose flow runs `erl-pipeline serve` runs."""

FLOWS: dict[FlowName, Flow[..., Any]] = {
    "train": scheduled.train,
    "iteration": scheduled.iteration,
    "evaluate": scheduled.evaluate,
    "learn": scheduled.learn,
    "maintain": scheduled.maintain,
}
TAG = "erl-pipeline"
"""The tag of all deployments of this program."""
_COLLISIONS = {
    "skip": ConcurrencyLimitStrategy.CANCEL_NEW,
    "wait": ConcurrencyLimitStrategy.ENQUEUE,
}
_LEASE_SECONDS = 60
CANCELLED = "Cancelled"
"""Prefect's name of a state. A flow run that did not begin because the one before still ran has it too."""

_LIMIT = "concurrency limit"
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


@contextmanager
def connected(url: str) -> Iterator[SyncPrefectClient]:
    """A client of a Prefect API.

    Raises OrchestratorError, which says what to do, when nothing answers there, the API goes away or fails.
    """
    if not answers(url):
        raise OrchestratorError(
            f"no Prefect server answers at {url}. Start one with `erl-pipeline serve`, or set "
            "PREFECT_API_URL to the one that you have."
        )
    with temporary_settings({PREFECT_API_URL: url}):
        try:
            with get_client(sync_client=True) as client:
                yield client
        except httpx.TransportError as error:
            raise OrchestratorError(f"Prefect's API at {url} went away ({error})") from error
        except httpx.HTTPStatusError as error:
            if refused := refusal(url, error):
                raise refused from error
            if not error.response.is_server_error:
                raise
            # Such as 503 while its SQLite database is locked, after the client's own retries.
            raise OrchestratorError(
                f"Prefect's server at {url} failed with status {error.response.status_code}. It may be busy: "
                "wait a moment, and run the same command again. If it goes on, the server's log says why "
                "(`erl-pipeline serve` prints where that is)."
            ) from error


def cron(expression: str, timezone: str) -> CronSchedule:
    """A schedule of the pattern `minute hour day month weekday`. Raises InputError for an invalid one,
    and for one that is never due."""
    try:
        schedule = CronSchedule(cron=expression, timezone=timezone)
    except ValueError as error:
        raise InputError(
            f"--cron {expression!r} in time zone {timezone} cannot be understood; an example is '0 3 * * *' "
            "in Europe/Zurich"
        ) from error
    try:
        # As Prefect's server does it, which would fail once a minute.
        asyncio.run(schedules.CronSchedule(cron=expression, timezone=timezone).get_dates(1))
    except ValueError as error:
        raise InputError(f"--cron {expression!r} is never due: the calendar has no such day") from error
    return schedule


def every(interval: timedelta) -> IntervalSchedule:
    """A schedule with a fixed interval; the first flow run is due after one interval."""
    return IntervalSchedule(interval=interval, anchor_date=datetime.now(ZoneInfo("UTC")))


def deploy(
    client: SyncPrefectClient,
    flow: FlowName,
    run: str,
    store: str,
    schedule: SCHEDULE_TYPES | None,
    overlap: Overlap,
    parameters: Mapping[str, Any],
    folder: Path,
    *,
    replace: bool = False,
) -> bool:
    """Make the deployment of a flow for a run, or replace its schedule and settings; True if it existed.

    Args:
        schedule: when flow runs are due; None if they are only made by hand.
        parameters: arguments of the flow besides `run`, `store` and `overlap`.
        folder: working folder of the flow runs, for relative paths in the run's configuration.
        replace: whether this schedule may replace an existing one.

    Raises InputError when the deployment is for a run of that name in another store, or would replace a
    schedule.
    """
    was_there = refuse_taken(client, flow, run, store, replace=replace) is not None
    _make_work_pool(client)
    function = FLOWS[flow]
    arguments = {"run": run, "store": store, **parameters}
    if flow != "maintain":
        arguments["overlap"] = overlap
    client.create_deployment(
        flow_id=client.create_flow(function),
        name=run,
        description=function.description,
        entrypoint=f"{function.fn.__module__}.{function.fn.__name__}",
        parameter_openapi_schema=parameter_schema(function).model_dump(exclude_unset=True),
        parameters=arguments,
        schedules=[] if schedule is None else [DeploymentScheduleCreate(schedule=schedule)],
        concurrency_limit=1,
        concurrency_options=ConcurrencyOptions(
            collision_strategy=_COLLISIONS[overlap], grace_period_seconds=_LEASE_SECONDS
        ),
        work_pool_name=WORK_POOL,
        job_variables={"working_dir": str(folder)},
        pull_steps=[],
        paused=False,
        enforce_parameter_schema=True,
        tags=[TAG],
    )
    return was_there


def refuse_taken(
    client: SyncPrefectClient, flow: FlowName, run: str, store: str, *, replace: bool
) -> DeploymentResponse | None:
    """The deployment of a flow for a run; None if there is none.

    Raises InputError when it is for a run of that name in another store, or has a schedule and `replace`
    is false.
    """
    before = find(client, run, flow)
    if before is None:
        return None
    _refuse_other_store(before, flow, store)
    if before.schedules and not replace:
        when = schedule_in_words(before.schedules[0].schedule)
        raise InputError(
            f"flow {flow} of run {run} is scheduled already, {when}; "
            "--replace puts the new schedule in its place"
        )
    return before


def overlap_of(deployment: DeploymentResponse) -> Overlap:
    """What a deployment does with a flow run that is due while the last one is at work."""
    options = deployment.concurrency_options
    waits = options is not None and options.collision_strategy == ConcurrencyLimitStrategy.ENQUEUE
    return "wait" if waits else "skip"


def run_once(
    client: SyncPrefectClient, flow: FlowName, run: str, store: str, parameters: Mapping[str, Any]
) -> FlowRun:
    """Make a flow run of a deployment, due now; `parameters` replace arguments of the deployment.

    Raises InputError when there is no such deployment, or it is for a run of another store.
    """
    deployment = _existing(client, run, flow)
    _refuse_other_store(deployment, flow, store)
    return client.create_flow_run_from_deployment(deployment.id, parameters=dict(parameters))


def find(client: SyncPrefectClient, run: str, flow: FlowName) -> DeploymentResponse | None:
    """The deployment of a flow for a run; None if there is none."""
    try:
        return client.read_deployment_by_name(f"{FLOWS[flow].name}/{run}")
    except ObjectNotFound:
        return None


def of_run(client: SyncPrefectClient, run: str) -> list[FlowName]:
    """The flows that are deployed for a run."""
    return [flow for flow in FLOWS if find(client, run, flow) is not None]


def pause(client: SyncPrefectClient, flow: FlowName, run: str) -> None:
    """Make no more flow runs by the schedule, and remove those that have not begun."""
    client.pause_deployment(_existing(client, run, flow).id)


def resume(client: SyncPrefectClient, flow: FlowName, run: str) -> None:
    """Continue the schedule after `pause`, and after somebody has switched it off on Prefect's page."""
    deployment = _existing(client, run, flow)
    for each in deployment.schedules:
        if not each.active:
            client.update_deployment_schedule(deployment.id, each.id, active=True)
    client.resume_deployment(deployment.id)


def remove(client: SyncPrefectClient, flow: FlowName, run: str) -> None:
    """Delete a deployment with its schedule; a flow run at work continues to its end."""
    client.delete_deployment(_existing(client, run, flow).id)


def require_store(client: SyncPrefectClient, flow: FlowName, run: str, store: str) -> None:
    """Raise InputError when a flow is deployed for a run of that name in another store."""
    _refuse_other_store(_existing(client, run, flow), flow, store)


def _refuse_other_store(deployment: DeploymentResponse, flow: FlowName, store: str) -> None:
    other = deployment.parameters["store"]
    if other != store:
        raise InputError(
            f"flow {flow} is deployed for a run {deployment.name} in another store, {other}; remove that "
            f"with: erl-pipeline schedule remove {deployment.name} --flow {flow}"
        )


def _existing(client: SyncPrefectClient, run: str, flow: FlowName) -> DeploymentResponse:
    found = find(client, run, flow)
    if found is None:
        raise InputError(f"flow {flow} is not scheduled for run {run}; see: erl-pipeline schedule list")
    return found


def _make_work_pool(client: SyncPrefectClient) -> None:
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    try:
        client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process", base_job_template=template))
    except ObjectAlreadyExists:
        return


def is_skip(state: str | None, message: str | None) -> bool:
    """Whether a flow run did nothing because another one was at work."""
    return state == SKIPPED or (state == CANCELLED and _LIMIT in (message or ""))


def in_words(state: str | None, message: str | None) -> str:
    """How a flow run ended, from the name and the message of its last state."""
    if state is None:
        return ""
    if state == SKIPPED:
        return f"skipped: {(message or '').removeprefix('Skipped: ')}"
    if is_skip(state, message):
        return "skipped: the one before it was still at work"
    return f"{state.lower()}: {message}" if message else state.lower()


def schedule_in_words(schedule: SCHEDULE_TYPES) -> str:
    """A schedule as text, such as `every 6h`."""
    if isinstance(schedule, CronSchedule):
        return f"cron {schedule.cron} {schedule.timezone}"
    if isinstance(schedule, IntervalSchedule):
        seconds = round(schedule.interval.total_seconds())
        size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
        return f"every {seconds // size}{unit}"
    return "by another rule"
