"""The deployments of this program: when their flow runs are due, and how the last ones ended."""

from dataclasses import dataclass
from datetime import datetime

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort

from flows.deployments import (
    CANCELLED,
    FLOWS,
    TAG,
    FlowName,
    in_words,
    is_skip,
    overlap_of,
    schedule_in_words,
)
from flows.scheduled_run import SKIPPED, Overlap

_PAGE = 200


@dataclass(frozen=True)
class ScheduledFlow:
    """A flow that is deployed for a run.

    `schedule` is text; None if flow runs are made only by hand. `next`, `last` and `succeeded` are times:
    when the next flow run is due, when the last one was due, and when the last successful one ended.
    `state` and `message` are those of the flow run that was last due; `ended` is the same as text.
    `skipped` is the time at which the last skipped flow run was due; `why_skipped` gives the reason, which
    is that another one was at work.
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


def deployed(client: SyncPrefectClient) -> list[ScheduledFlow]:
    """All deployments of this program, by run and flow."""
    found: list[DeploymentResponse] = []
    while not found or len(found) % _PAGE == 0:
        ours = DeploymentFilter.model_validate({"tags": {"all_": [TAG]}})
        page = client.read_deployments(deployment_filter=ours, limit=_PAGE, offset=len(found))
        found += page
        if not page:
            break
    flows = {client.create_flow(flow): name for name, flow in FLOWS.items()}
    rows = [_row(client, each, flows[each.flow_id]) for each in found if each.flow_id in flows]
    return sorted(rows, key=lambda row: (row.run, row.flow))


def _row(client: SyncPrefectClient, deployment: DeploymentResponse, flow: FlowName) -> ScheduledFlow:
    def newest(sort: FlowRunSort, states: list[StateType], *names: str, limit: int = 1) -> list[FlowRun]:
        state = {"type": {"any_": states}, "name": {"any_": list(names)} if names else None}
        return client.read_flow_runs(
            deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}}),
            flow_run_filter=FlowRunFilter.model_validate({"state": state}),
            sort=sort,
            limit=limit,
        )

    due = newest(FlowRunSort.EXPECTED_START_TIME_ASC, [StateType.SCHEDULED])
    last_due = FlowRunSort.EXPECTED_START_TIME_DESC
    begun = newest(last_due, [each for each in StateType if each != StateType.SCHEDULED])
    succeeded = newest(FlowRunSort.END_TIME_DESC, [StateType.COMPLETED], "Completed")
    ended = [StateType.COMPLETED, StateType.CANCELLED]
    perhaps_skipped = newest(last_due, ended, SKIPPED, CANCELLED, limit=_PAGE)
    skipped = [run for run in perhaps_skipped if run.state and is_skip(run.state.name, run.state.message)]
    state = begun[0].state if begun else None
    return ScheduledFlow(
        run=deployment.name,
        flow=flow,
        store=deployment.parameters["store"],
        schedule=schedule_in_words(deployment.schedules[0].schedule) if deployment.schedules else None,
        # Prefect can also switch off a schedule alone.
        paused=deployment.paused
        or (bool(deployment.schedules) and not any(each.active for each in deployment.schedules)),
        overlap=overlap_of(deployment),
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
