"""Deployments of Prefect for the runs of a store: making, listing, pausing and removing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import httpx
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import (
    ConcurrencyLimitStrategy,
    ConcurrencyOptions,
    FlowRun,
    StateType,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema

from flows import scheduled
from flows.local_server import OrchestratorError, answers
from flows.schedule_words import CANCELLED, in_words, is_skip
from flows.scheduled_run import SKIPPED, Overlap
from storage.errors import InputError

FlowName = Literal["train", "iteration", "evaluate", "maintain"]

WORK_POOL = "erl-pipeline"
"""The work pool that `erl-pipeline serve` works on."""

_FLOWS: dict[FlowName, Flow[..., Any]] = {
    "train": scheduled.train,
    "iteration": scheduled.iteration,
    "evaluate": scheduled.evaluate,
    "maintain": scheduled.maintain,
}
_TAG = "erl-pipeline"
_COLLISIONS = {
    "skip": ConcurrencyLimitStrategy.CANCEL_NEW,
    "wait": ConcurrencyLimitStrategy.ENQUEUE,
}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_LEASE_SECONDS = 60
_PAGE = 200


@dataclass(frozen=True)
class ScheduledFlow:
    """A flow of a run, as it is deployed.

    `schedule` in words, None where flow runs are made by hand alone. `next`, `last` and `succeeded` are
    times: when the next flow run is due, when the last one was, and when the last that did its work ended.
    `state` and `message` are those of the flow run that was last due, `ended` the same in words. `skipped`
    is when the last one was due that did nothing since another was at work, `why_skipped` says which.
    """

    run: str
    flow: FlowName
    store: str
    schedule: str | None
    paused: bool
    overlap: Overlap
    next: datetime | None
    last: datetime | None
    state: str | None
    message: str | None
    ended: str
    succeeded: datetime | None
    skipped: datetime | None
    why_skipped: str


@contextmanager
def connected(url: str) -> Iterator[SyncPrefectClient]:
    """A client of a Prefect API.

    Raises OrchestratorError, with what to do, when nothing answers there or it goes away.
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


def cron(expression: str, timezone: str) -> CronSchedule:
    """Times after the pattern `minute hour day month weekday`. Raises InputError for a bad one."""
    try:
        return CronSchedule(cron=expression, timezone=timezone)
    except ValueError as error:
        raise InputError(
            f"--cron {expression!r} in time zone {timezone} cannot be understood; an example is '0 3 * * *' "
            "in Europe/Zurich"
        ) from error


def every(interval: timedelta) -> IntervalSchedule:
    """Times at even distances, the first when one distance has passed."""
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
    """Make the deployment of a flow for a run, or replace its schedule and settings; True if it was there.

    Args:
        schedule: when flow runs are due; None for none but those made by hand.
        parameters: arguments of the flow beside `run`, `store` and `overlap`.
        folder: where flow runs work, for relative paths in the run's configuration.
        replace: whether a schedule that there is may be replaced by this one.

    Raises InputError when the deployment is for a run of that name in another store, or would replace a
    schedule.
    """
    before = find(client, run, flow)
    if before is not None:
        _refuse_other_store(before, flow, store)
        if before.schedules and not replace:
            raise InputError(
                f"flow {flow} of run {run} is scheduled already, {_in_words(before.schedules[0].schedule)}; "
                "--replace puts the new schedule in its place"
            )
    _make_work_pool(client)
    function = _FLOWS[flow]
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
        tags=[_TAG],
    )
    return before is not None


def run_once(
    client: SyncPrefectClient, flow: FlowName, run: str, store: str, parameters: Mapping[str, Any]
) -> FlowRun:
    """A flow run of a deployment, due now, with these arguments in place of the deployment's.

    Raises InputError when there is no such deployment, or it is for a run of another store.
    """
    deployment = _existing(client, run, flow)
    _refuse_other_store(deployment, flow, store)
    return client.create_flow_run_from_deployment(deployment.id, parameters=dict(parameters))


def find(client: SyncPrefectClient, run: str, flow: FlowName) -> DeploymentResponse | None:
    """The deployment of a flow for a run."""
    try:
        return client.read_deployment_by_name(f"{_FLOWS[flow].name}/{run}")
    except ObjectNotFound:
        return None


def of_run(client: SyncPrefectClient, run: str) -> list[FlowName]:
    """The flows that are deployed for a run."""
    return [flow for flow in _FLOWS if find(client, run, flow) is not None]


def pause(client: SyncPrefectClient, flow: FlowName, run: str) -> None:
    """Make no more flow runs, and take back those not yet begun."""
    client.pause_deployment(_existing(client, run, flow).id)


def resume(client: SyncPrefectClient, flow: FlowName, run: str) -> None:
    """Go on with the schedule."""
    client.resume_deployment(_existing(client, run, flow).id)


def remove(client: SyncPrefectClient, flow: FlowName, run: str) -> None:
    """Forget a deployment with its schedule; a flow run at work goes on to its end."""
    client.delete_deployment(_existing(client, run, flow).id)


def deployed(client: SyncPrefectClient) -> list[ScheduledFlow]:
    """All deployments of this program, by run and flow."""
    found: list[DeploymentResponse] = []
    while not found or len(found) % _PAGE == 0:
        tags = DeploymentFilter(tags=DeploymentFilterTags(all_=[_TAG]))
        page = client.read_deployments(deployment_filter=tags, limit=_PAGE, offset=len(found))
        found += page
        if not page:
            break
    flows = {client.create_flow(flow): name for name, flow in _FLOWS.items()}
    rows = [_row(client, each, flows[each.flow_id]) for each in found if each.flow_id in flows]
    return sorted(rows, key=lambda row: (row.run, row.flow))


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


def _row(client: SyncPrefectClient, deployment: DeploymentResponse, flow: FlowName) -> ScheduledFlow:
    of_deployment = DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id]))
    due = client.read_flow_runs(
        deployment_filter=of_deployment,
        flow_run_filter=_in_states([StateType.SCHEDULED]),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=1,
    )
    begun = client.read_flow_runs(
        deployment_filter=of_deployment,
        flow_run_filter=_in_states([each for each in StateType if each != StateType.SCHEDULED]),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=1,
    )
    succeeded = client.read_flow_runs(
        deployment_filter=of_deployment,
        flow_run_filter=_in_states([StateType.COMPLETED], "Completed"),
        sort=FlowRunSort.END_TIME_DESC,
        limit=1,
    )
    perhaps_skipped = client.read_flow_runs(
        deployment_filter=of_deployment,
        flow_run_filter=_in_states([StateType.COMPLETED, StateType.CANCELLED], SKIPPED, CANCELLED),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_PAGE,
    )
    skipped = [run for run in perhaps_skipped if run.state and is_skip(run.state.name, run.state.message)]
    state = begun[0].state if begun else None
    options = deployment.concurrency_options
    waits = options is not None and options.collision_strategy == ConcurrencyLimitStrategy.ENQUEUE
    return ScheduledFlow(
        run=deployment.name,
        flow=flow,
        store=deployment.parameters["store"],
        schedule=_in_words(deployment.schedules[0].schedule) if deployment.schedules else None,
        paused=deployment.paused,
        overlap="wait" if waits else "skip",
        next=due[0].expected_start_time if due else None,
        last=begun[0].expected_start_time if begun else None,
        state=state.name if state else None,
        message=state.message if state else None,
        ended=in_words(state.name, state.message) if state else "",
        succeeded=succeeded[0].end_time if succeeded else None,
        skipped=skipped[0].expected_start_time if skipped else None,
        why_skipped=in_words(skipped[0].state.name, skipped[0].state.message)
        if skipped and skipped[0].state
        else "",
    )


def _in_states(states: list[StateType], *names: str) -> FlowRunFilter:
    named = FlowRunFilterStateName(any_=list(names)) if names else None
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states), name=named))


def _in_words(schedule: SCHEDULE_TYPES) -> str:
    if isinstance(schedule, CronSchedule):
        return f"cron {schedule.cron} {schedule.timezone}"
    if isinstance(schedule, IntervalSchedule):
        seconds = round(schedule.interval.total_seconds())
        size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
        return f"every {seconds // size}{unit}"
    return "by another rule"
