"""What killed workers and drivers have left behind, which Prefect would show as running for ever."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import AwaitingRetry, Crashed

from flows.local_server import OrchestratorError

MAX_STARTS = 3
"""Most starts of a flow run that was at work each time its worker was killed."""

AT_WORK = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
"""States of what a process works on, or worked on when it was killed."""
FLOW = "training"
"""The flow of the flow runs that drivers begin by themselves."""
_WORKER = "prefect.worker.name"
_PAGE = 200


@contextmanager
def only_worker(home: Path, name: str) -> Iterator[None]:
    """Hold a lock as the only worker of this name on this machine; the kernel drops it with the process.

    Args:
        home: Prefect's folder, created if it is missing.

    Raises OrchestratorError when another worker has this name, since its flow runs would be taken for
    orphans, or when the folder cannot be written.
    """
    file_name = "".join(each if each.isalnum() else "-" for each in name)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f"erl-pipeline-worker-{file_name}.lock").open("w")
    except OSError as error:
        raise OrchestratorError(
            f"Prefect's folder {home} cannot be written ({error.strerror}); set PREFECT_HOME to another"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OrchestratorError(
                f"a worker {name!r} runs on this machine already; end it, or name this one with --worker"
            ) from None
        yield


def restart_orphans(client: SyncPrefectClient, pool: str, worker: str) -> list[str]:
    """Restart the flow runs that were at work when the worker of this name was killed; returns their names.

    They reuse what they had committed. A flow run that was started `MAX_STARTS` times ends as crashed.
    """
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    at_work = FlowRunFilterState(type=FlowRunFilterStateType(any_=AT_WORK))
    found: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=at_work),
            work_pool_filter=of_pool,
            limit=_PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < _PAGE:
            break
    restarted = []
    for orphan in found:
        if orphan.labels.get(_WORKER) != worker:
            continue
        if orphan.run_count >= MAX_STARTS:
            reason = f"Its worker was killed while it ran, {orphan.run_count} times"
            client.set_flow_run_state(orphan.id, Crashed(message=reason))
            continue
        again: State[None] = AwaitingRetry(
            scheduled_time=datetime.now(UTC),
            message="Its worker was killed; it goes on from what is committed",
        )
        client.set_flow_run_state(orphan.id, again)
        restarted.append(orphan.name)
    return restarted


def end_left_behind(client: SyncPrefectClient, tag: str, flow_run_id: str, message: str) -> None:
    """Set to crashed what an ended process of a run left as running.

    That is: flow runs of `FLOW`, and unfinished task runs of any flow run. A flow run of another flow belongs
    to a Prefect worker, and `restart_orphans` starts it again.

    Args:
        tag: the tag that all flow runs of the run have, and no others; the run has to be locked.
        flow_run_id: the flow run that works on the run now; it has not reported any task run yet.

    Raises httpx.HTTPError when the server cannot be reached or refuses.
    """
    state = {"type": "CRASHED", "name": "Crashed", "message": message}
    at_work = {"state": {"type": {"any_": [each.value for each in AT_WORK]}}}
    tagged = {"tags": {"all_": [tag]}}
    others = {"flow_runs": {**tagged, **at_work, "id": {"not_any_": [flow_run_id]}}}
    for kind, asked in (
        ("task_runs", {"flow_runs": tagged, "task_runs": at_work}),
        ("flow_runs", {**others, "flows": {"name": {"any_": [FLOW]}}}),
    ):
        for found in _post(client, f"/{kind}/filter", asked):
            _post(client, f"/{kind}/{found['id']}/set_state", {"state": state, "force": True})


def add_tag(client: SyncPrefectClient, tag: str, flow_run_id: str) -> None:
    """Add a tag to a flow run. Raises httpx.HTTPError when the server cannot be reached or refuses."""
    path: Any = f"/flow_runs/{flow_run_id}"
    tags = client.request("GET", path).raise_for_status().json()["tags"]
    if tag not in tags:
        client.request("PATCH", path, json={"tags": [*tags, tag]}).raise_for_status()


def _post(client: SyncPrefectClient, path: Any, content: Any) -> Any:
    return client.request("POST", path, json=content).raise_for_status().json()
