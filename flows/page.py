"""What Prefect's page shows of a run beside its tasks: a table of its iterations, and a summary."""

import json
import re
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import TERMINAL_STATES, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from prefect.tasks import Task

from erl_pipeline.plan.stage import WorkerSettings
from flows.submissions import Work
from storage.runs.documents import run_identity

FLOW = "training"
"""The flow of the flow runs that drivers begin by themselves."""
AT_WORK = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
"""States of what a process works on, or worked on when it was killed."""
_LOOK_SECONDS = 0.05
_RECORDING_SECONDS = 60.0
_KNOWN_SECONDS = 2.0


class RunPage:
    """What the page of one flow run shows beside its tasks.

    Args:
        flow_run_id: the flow run in which the run is worked on.
    """

    def __init__(self, worker: WorkerSettings, flow_run_id: UUID) -> None:
        self._worker = worker
        # A name and a URI do not tell runs apart: `store` is a folder of any machine.
        self._identity = run_identity(worker.store_uri, worker.run)
        self._tag = f"run {worker.run} {self._identity}"
        self.flow_run_id = flow_run_id
        """The flow run whose page this is."""
        self.tasks = 0
        """How many task runs it has been given, without those of workers that have died."""
        self._crashed: dict[UUID, State[None]] = {}

    def end_left_behind(self, client: SyncPrefectClient) -> str | None:
        """Set to crashed what an ended process of this run left as running; to be called before the first
        task.

        Returns a warning if the server refuses that, which is no reason to end the run; else None.
        """
        name = self._worker.run
        message = (
            f"The process that worked on this has ended; run {name} was continued by flow run {name} "
            f"({self.flow_run_id})"
        )
        try:
            tags = client.read_flow_run(self.flow_run_id).tags
            if self._tag not in tags:
                client.update_flow_run(self.flow_run_id, tags=[*tags, self._tag]).raise_for_status()
            _end_left_behind(client, self._tag, self.flow_run_id, message)
        except (httpx.HTTPStatusError, ObjectNotFound) as error:
            return (
                f"Prefect may show a killed process of run {name} as running, since its server said: "
                f"{error.__cause__ or error}"
            )
        return None

    def is_cancelled(self, client: SyncPrefectClient) -> bool:
        """Whether somebody has cancelled the flow run, such as on Prefect's page."""
        state = client.read_flow_run(self.flow_run_id).state
        return state is not None and (state.is_cancelling() or state.is_cancelled())

    def crashed(self, task: Task[Any, Any], task_run_id: UUID, title: str, message: str) -> None:
        """Show the task run of a worker that has died, of which the server may not have heard before."""
        state: State[None] = Crashed(message=message)
        self._crashed[task_run_id] = state
        deadline = time.monotonic() + _KNOWN_SECONDS
        try:
            with get_client(sync_client=True) as client:
                while time.monotonic() < deadline:
                    try:
                        client.set_task_run_state(task_run_id, state, force=True)
                        return
                    except ObjectNotFound:
                        time.sleep(_LOOK_SECONDS)
                key = str(task_run_id)
                client.create_task_run(task, self.flow_run_id, key, id=task_run_id, name=title, state=state)
        except httpx.HTTPError:
            return  # The end of the flow run says that the API is gone.

    def await_records(self) -> int:
        """Wait until the server has written what it received, since a local server is about to stop; returns
        how many task runs it has still not written after a minute. Raises ObjectNotFound if somebody has
        deleted the flow run."""
        ended = {"state": {"type": {"any_": [each.value for each in TERMINAL_STATES]}}}
        asked = {"flow_runs": {"id": {"any_": [str(self.flow_run_id)]}}, "task_runs": ended}
        deadline = time.monotonic() + _RECORDING_SECONDS
        with get_client(sync_client=True) as client:
            client.read_flow_run(self.flow_run_id)  # Of one that was deleted nothing will be written.
            expected = self.tasks + len(self._crashed)
            while (missing := expected - _count_task_runs(client, asked)) > 0:
                if time.monotonic() > deadline:
                    return int(missing)
                # What a worker sent before it died may be written after that it crashed.
                for task_run_id, state in self._crashed.items():
                    with suppress(ObjectNotFound):  # the server has not written it yet
                        found = client.read_task_run(task_run_id).state
                        if found is None or not found.is_crashed():
                            client.set_task_run_state(task_run_id, state, force=True)
                time.sleep(_LOOK_SECONDS)
        return 0

    def show_table(self, client: SyncPrefectClient) -> None:
        """Send a new version of the table of the run's newest iterations."""
        rows = newest_rows(self._worker.store_uri, self._worker.run)
        self._show(
            client, "iterations", "table", json.dumps(rows), f"Run {self._worker.run}, iteration by iteration"
        )

    def show_summary(self, client: SyncPrefectClient, work: Work) -> None:
        """Send a summary of what the flow run has computed."""
        lines = [
            f"# Run {self._worker.run}",
            "",
            f"Store: {self._worker.store_uri}",
            "",
            f"This flow run computed {sum(work.computed.values())} artifacts in {work.seconds:,.1f} seconds "
            f"of stages, and reused {work.reused} that were committed before.",
            "",
            *(f"- {stage}: {count}" for stage, count in sorted(work.computed.items())),
        ]
        self._show(client, "summary", "markdown", "\n".join(lines), "")

    def _show(self, client: SyncPrefectClient, kind: str, type_: str, data: str, description: str) -> None:
        client.create_artifact(
            ArtifactCreate(
                key=artifact_key(self._worker.run, self._identity, kind),
                type=type_,
                data=data,
                description=description,
                flow_run_id=self.flow_run_id,
            )
        )


def _end_left_behind(client: SyncPrefectClient, tag: str, flow_run_id: UUID, message: str) -> None:
    """Set to crashed what an ended process of a run left as running.

    That is: flow runs of `FLOW`, and unfinished task runs of any flow run. A flow run of another flow belongs
    to a Prefect worker, and `worker.restart_orphans` starts it again.

    Args:
        tag: the tag that all flow runs of the run have, and no others; the run has to be locked.
        flow_run_id: the flow run that works on the run now; it has not reported any task run yet.
    """
    crashed: State[None] = Crashed(message=message)
    at_work = {"state": {"type": {"any_": AT_WORK}, "name": None}}
    tagged = {"tags": {"all_": [tag]}}
    for task_run in client.read_task_runs(
        flow_run_filter=FlowRunFilter.model_validate(tagged),
        task_run_filter=TaskRunFilter.model_validate(at_work),
    ):
        client.set_task_run_state(task_run.id, crashed, force=True)
    others = {**tagged, **at_work, "id": {"not_any_": [flow_run_id]}}
    for flow_run in client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": [FLOW]}}),
        flow_run_filter=FlowRunFilter.model_validate(others),
    ):
        client.set_flow_run_state(flow_run.id, crashed, force=True)


def _count_task_runs(client: SyncPrefectClient, asked: dict[str, Any]) -> int:
    path: Any = "/task_runs/count"  # Prefect's client has a method that counts flow runs only.
    return int(client.request("POST", path, json=asked).raise_for_status().json())


def artifact_key(run: str, identity: str, kind: str) -> str:
    """A Prefect artifact key, which may hold only lower-case letters, digits and dashes. Runs `a.b` and
    `a-b`, or two of the same name, differ by `identity`."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run}-{identity[:8]}-{kind}".lower()).strip("-")


def newest_rows(store_uri: str, run: str) -> list[dict[str, str]]:
    """A run's newest iterations as the terminal shows them, column by column."""
    from erl_pipeline.evaluation.iterations import stored_rows
    from erl_pipeline.runs.config import run_columns
    from erl_pipeline.views.report.tables import MOST_ROWS, iteration_table
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    opened = RunStore(store_uri).open(run)
    columns, entries = run_columns(opened), opened.stages()
    newest = max((entry.iteration or 0 for entry in entries), default=0)
    shown = [entry for entry in entries if (entry.iteration or 0) > newest - MOST_ROWS]
    return iteration_table(stored_rows(ArtifactStore(store_uri), shown, columns), columns).cells
