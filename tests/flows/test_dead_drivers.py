"""What a killed driver left as running on Prefect's page. `test_runner.py` kills one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Running

from erl_pipeline.plan.resources import WorkerSettings
from flows.deployments import connected
from flows.page import RunPage
from flows.scheduled import train
from flows.task_states import RUNNING, TaskRun, TaskState
from storage.runs.run import RunStore
from tests.waiting import wait_for


@pytest.fixture
def client(api: str) -> Iterator[SyncPrefectClient]:
    with connected(api) as client:
        yield client


@pytest.fixture
def worker(tmp_path: Path) -> WorkerSettings:
    RunStore(str(tmp_path / "store")).create("small", {})
    return WorkerSettings(str(tmp_path / "store"), "small", threads=1)


def begin_stage(client: SyncPrefectClient, page: RunPage) -> UUID:
    """Report that a stage has begun; the id of its task run."""
    now = datetime.now(UTC)
    task_run = TaskRun("write 0", "write", 1, now, {})
    page.tell([TaskState(task_run, RUNNING, now, "")])
    asked = {"task_runs": {"id": {"any_": [str(task_run.id)]}}}
    wait_for("the task run", lambda: client.request("POST", "/task_runs/count", json=asked).json())
    return task_run.id


def flow_state(client: SyncPrefectClient, page: RunPage) -> tuple[str, str | None]:
    state: Any = client.read_flow_run(UUID(page.flow_run_id)).state
    return state.name, state.message


def task_state(client: SyncPrefectClient, task_run: UUID) -> tuple[str, str | None]:
    state: Any = client.read_task_run(task_run).state
    return state.name, state.message


def test_what_a_killed_driver_left_is_crashed_and_nothing_of_another_run_or_store(
    client: SyncPrefectClient, worker: WorkerSettings, tmp_path: Path
) -> None:
    killed = RunPage(client, worker, None)
    stage = begin_stage(client, killed)
    RunStore(worker.store_uri).create("other", {})
    shutil.copytree(worker.store_uri, tmp_path / "copy")
    at_work = [
        RunPage(client, WorkerSettings(store, run, threads=1), None)
        for store, run in ((worker.store_uri, "other"), (str(tmp_path / "copy"), "small"))
    ]
    stage_at_work = begin_stage(client, at_work[1])

    page = RunPage(client, worker, None)
    assert page.end_left_behind() is None
    message = (
        "The process that worked on this has ended; run small was continued by flow run small "
        f"({page.flow_run_id})"
    )
    assert flow_state(client, killed) == ("Crashed", message)
    assert task_state(client, stage) == ("Crashed", message)
    assert [flow_state(client, each)[0] for each in (page, *at_work)] == ["Running"] * 3
    assert task_state(client, stage_at_work)[0] == "Running"

    page.end(None)
    later = RunPage(client, worker, None)
    assert later.end_left_behind() is None
    assert flow_state(client, killed) == ("Crashed", message)
    assert flow_state(client, page)[0] == "Completed"


def test_a_flow_run_of_a_prefect_worker_is_left_to_it_but_not_the_task_runs_of_its_killed_process(
    client: SyncPrefectClient, worker: WorkerSettings
) -> None:
    parameters = {"run": "small", "store": worker.store_uri}
    scheduled = client.create_flow_run(train, parameters=parameters, state=Running(), tags=["mine"])
    killed = RunPage(client, worker, str(scheduled.id))
    assert killed.end_left_behind() is None
    first = begin_stage(client, killed)
    again = RunPage(client, worker, str(scheduled.id))
    assert again.end_left_behind() is None
    second = begin_stage(client, again)
    assert [task_state(client, each)[0] for each in (first, second)] == ["Crashed", "Running"]
    assert "mine" in client.read_flow_run(scheduled.id).tags

    assert RunPage(client, worker, None).end_left_behind() is None
    assert flow_state(client, again)[0] == "Running"
    assert task_state(client, second)[0] == "Crashed"


def test_a_refusal_of_the_server_is_a_warning(client: SyncPrefectClient, worker: WorkerSettings) -> None:
    warning = RunPage(client, worker, str(uuid4())).end_left_behind()
    assert str(warning).startswith("Prefect may show a killed process of run small as running")
    assert "404" in str(warning)
