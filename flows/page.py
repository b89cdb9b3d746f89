"""A run on Prefect's page: its flow run, the task runs of its stages, a table of iterations, a summary.

Task runs are sent as events, in the form in which Prefect's own engine reports them: each with the time at
which it happened, and many in one request.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL, temporary_settings

from erl_pipeline.engines.interface import Interrupted
from erl_pipeline.plan.resources import WorkerSettings
from flows.dead_drivers import FLOW, add_tag, end_left_behind
from flows.local_server import WentAway
from flows.task_states import CANCELLED, COMPLETED, FAILED, RUNNING, TaskState, Work
from storage.runs.identity import run_identity

_LOOK_SECONDS = 0.05
_RECORDING_SECONDS = 60.0


@contextmanager
def open_page(worker: WorkerSettings, url: str) -> Iterator[RunPage]:
    """The page of a run: for the flow run in which this is called, else for a new one of flow `training`.

    Args:
        url: of Prefect's API.

    Raises WentAway when the API goes away or refuses.
    """
    with temporary_settings({PREFECT_API_URL: url}):
        try:
            with get_client(sync_client=True) as client:
                yield RunPage(client, worker, flow_run.get_id())
        except httpx.HTTPError as error:
            raise WentAway(f"Prefect's API at {url} went away ({error})") from error


class RunPage:
    """Reports one run to Prefect.

    Args:
        flow_run_id: a flow run that the caller began and will end; None to begin a new one.
    """

    def __init__(self, client: SyncPrefectClient, worker: WorkerSettings, flow_run_id: str | None) -> None:
        self._client = client
        self._worker = worker
        # A name and a URI do not tell runs apart: `store` is a folder of any machine.
        self._tag = f"run {worker.run} {run_identity(worker.store_uri, worker.run)}"
        self._own = flow_run_id is None
        self.flow_run_id = flow_run_id or self._begin()
        """The flow run whose page this is."""
        self.told = 0
        """How many ends of task runs were told."""

    def end_left_behind(self) -> str | None:
        """Set to crashed what an ended process of this run left as running; to be called before `tell`.

        Returns a warning if the server refuses that, which is no reason to end the run; else None.
        """
        name = self._worker.run
        message = (
            f"The process that worked on this has ended; run {name} was continued by flow run {name} "
            f"({self.flow_run_id})"
        )
        try:
            if not self._own:
                add_tag(self._client, self._tag, self.flow_run_id)
            end_left_behind(self._client, self._tag, self.flow_run_id, message)
        except httpx.HTTPStatusError as error:
            return (
                f"Prefect may show a killed process of run {name} as running, since its server said: {error}"
            )
        return None

    def tell(self, states: Sequence[TaskState]) -> None:
        """Report states of task runs, the oldest first."""
        if states:
            self._post("/events", [_event(state, self.flow_run_id) for state in states])
            self.told += sum(state.type != RUNNING for state in states)

    def await_records(self) -> int:
        """Wait until the server has written what it received, since a local server is about to stop; returns
        how many task runs it has still not written after a minute."""
        ended = {"state": {"type": {"any_": [COMPLETED, FAILED, CANCELLED]}}}
        asked = {"flow_runs": {"id": {"any_": [self.flow_run_id]}}, "task_runs": ended}
        deadline = time.monotonic() + _RECORDING_SECONDS
        while (missing := self.told - self._post("/task_runs/count", asked).json()) > 0:
            if time.monotonic() > deadline:
                return int(missing)
            time.sleep(_LOOK_SECONDS)
        return 0

    def show_table(self) -> None:
        """Send a new version of the table of the run's newest iterations."""
        rows = newest_rows(self._worker.store_uri, self._worker.run)
        self._show("iterations", "table", json.dumps(rows), f"Run {self._worker.run}, iteration by iteration")

    def show_summary(self, work: Work) -> None:
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
        self._show("summary", "markdown", "\n".join(lines), "")

    def end(self, error: BaseException | None) -> None:
        """Report how the run ended, if this object began the flow run."""
        if not self._own:
            return
        state: dict[str, Any] = {"type": COMPLETED}
        if isinstance(error, Interrupted):
            state = {"type": CANCELLED, "message": "Asked to stop; what was committed is kept"}
        elif error is not None:
            state = {"type": FAILED, "message": f"{type(error).__name__}: {error}"}
        self._post(f"/flow_runs/{self.flow_run_id}/set_state", {"state": state, "force": True})

    def _begin(self) -> str:
        flow = self._client.create_flow_from_name(FLOW)
        place = {"run": self._worker.run, "store": self._worker.store_uri}
        made = self._post(
            "/flow_runs/",
            {
                "flow_id": str(flow),
                "name": self._worker.run,
                "parameters": place,
                "tags": [self._tag],
                "state": {"type": RUNNING},
            },
        )
        return str(made.json()["id"])

    def _show(self, kind: str, type_: str, data: str, description: str) -> None:
        self._post(
            "/artifacts/",
            {
                "key": artifact_key(self._worker.run, kind),
                "type": type_,
                "data": data,
                "description": description,
                "flow_run_id": self.flow_run_id,
            },
        )

    def _post(self, path: Any, content: Any) -> httpx.Response:
        response = self._client.request("POST", path, json=content)
        return response.raise_for_status()


def artifact_key(run: str, kind: str) -> str:
    """A Prefect artifact key, which may hold only lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run}-{kind}".lower()).strip("-")


def newest_rows(store_uri: str, run: str) -> list[dict[str, str]]:
    """A run's newest iterations as the terminal shows them, column by column."""
    from erl_pipeline.evaluation.iterations import stored_rows
    from erl_pipeline.runs.columns import run_columns
    from erl_pipeline.views.iteration_table import MOST_ROWS, row_cells, shown_columns
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    opened = RunStore(store_uri).open(run)
    columns, entries = run_columns(opened), opened.stages()
    newest = max((entry.iteration or 0 for entry in entries), default=0)
    shown = [entry for entry in entries if (entry.iteration or 0) > newest - MOST_ROWS]
    rows = stored_rows(ArtifactStore(store_uri), shown, columns)
    tabled = shown_columns(rows, columns)
    return [row_cells(row, tabled) for row in rows]


def _event(state: TaskState, flow_run_id: str) -> dict[str, Any]:
    """A state of a task run as an event of Prefect."""
    task_run, ended = state.task_run, state.type != RUNNING
    name = state.type.capitalize()
    described = {
        "name": task_run.name,
        "task_key": f"erl_pipeline.{task_run.stage}",
        "dynamic_key": str(task_run.id),
        "tags": _tags(task_run.iteration),
        "task_inputs": {
            name: [{"input_type": "task_run", "id": str(parent)}] for name, parent in task_run.parents.items()
        },
        "run_count": 1,
        "flow_run_run_count": 1,
        "expected_start_time": task_run.started.isoformat(),
        "start_time": task_run.started.isoformat(),
        "end_time": state.at.isoformat() if ended else None,
        "total_run_time": (state.at - task_run.started).total_seconds(),
    }
    resource = {
        "prefect.resource.id": f"prefect.task-run.{task_run.id}",
        "prefect.resource.name": task_run.name,
        "prefect.state-message": state.message,
        "prefect.state-name": name,
        "prefect.state-timestamp": state.at.isoformat(),
        "prefect.state-type": state.type,
        "prefect.orchestration": "client",
    }
    return {
        "id": str(uuid4()),
        "occurred": state.at.isoformat(),
        "event": f"prefect.task-run.{name}",
        "payload": {
            "intended": {"from": RUNNING if ended else None, "to": state.type},
            "initial_state": None,
            "validated_state": {
                "type": state.type,
                "name": name,
                "message": state.message,
                "state_details": {},
                "data": None,
            },
            "task_run": described,
        },
        "resource": resource,
        "related": [
            {
                "prefect.resource.id": f"prefect.flow-run.{flow_run_id}",
                "prefect.resource.role": "flow-run",
            },
        ],
    }


def _tags(iteration: int | None) -> list[str]:
    return ["before the first iteration" if iteration is None else f"iteration {iteration}"]
