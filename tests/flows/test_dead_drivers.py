"""What a killed driver left as running on Prefect's page. `test_runner.py` kills one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Completed, Running

from erl_pipeline.plan.stage import WorkerSettings
from flows.deployments import connected
from flows.page import FLOW, RunPage
from flows.scheduled import train
from storage.runs.run import RunStore


@pytest.fixture
def client(api: str) -> Iterator[SyncPrefectClient]:
    with connected(api) as client:
        yield client


@pytest.fixture
def worker(tmp_path: Path) -> WorkerSettings:
    RunStore(str(tmp_path / "store")).create("small", {})
    return WorkerSettings(str(tmp_path / "store"), "small", threads=1)


@task
def write() -> None:
    """A stage whose process is killed."""


@flow
def training() -> None:
    """The flow of a driver."""


def page_of(client: SyncPrefectClient, worker: WorkerSettings) -> RunPage:
    """The page of a driver's flow run, which has begun."""
    return RunPage(worker, client.create_flow_run(training.with_options(name=FLOW), state=Running()).id)


def begin_stage(client: SyncPrefectClient, page: RunPage) -> UUID:
    """A task run of the flow run that has begun; its id."""
    begun = client.create_task_run(write, page.flow_run_id, dynamic_key=str(uuid4()), state=Running())
    return begun.id


def end(client: SyncPrefectClient, page: RunPage) -> None:
    """As the flow of a driver ends."""
    client.set_flow_run_state(page.flow_run_id, Completed(), force=True)


def flow_state(client: SyncPrefectClient, page: RunPage) -> tuple[str, str | None]:
    state: Any = client.read_flow_run(page.flow_run_id).state
    return state.name, state.message


def task_state(client: SyncPrefectClient, task_run: UUID) -> tuple[str, str | None]:
    state: Any = client.read_task_run(task_run).state
    return state.name, state.message


def test_what_a_killed_driver_left_is_crashed_and_nothing_of_another_run_or_store(
    client: SyncPrefectClient, worker: WorkerSettings, tmp_path: Path
) -> None:
    killed = page_of(client, worker)
    assert killed.end_left_behind(client) is None
    stage = begin_stage(client, killed)
    RunStore(worker.store_uri).create("other", {})
    shutil.copytree(worker.store_uri, tmp_path / "copy")
    at_work = [
        page_of(client, WorkerSettings(store, run, threads=1))
        for store, run in ((worker.store_uri, "other"), (str(tmp_path / "copy"), "small"))
    ]
    assert [each.end_left_behind(client) for each in at_work] == [None] * 2
    stage_at_work = begin_stage(client, at_work[1])

    page = page_of(client, worker)
    assert page.end_left_behind(client) is None
    message = (
        "The process that worked on this has ended; run small was continued by flow run small "
        f"({page.flow_run_id})"
    )
    assert flow_state(client, killed) == ("Crashed", message)
    assert task_state(client, stage) == ("Crashed", message)
    assert [flow_state(client, each)[0] for each in (page, *at_work)] == ["Running"] * 3
    assert task_state(client, stage_at_work)[0] == "Running"

    end(client, page)
    later = page_of(client, worker)
    assert later.end_left_behind(client) is None
    assert flow_state(client, killed) == ("Crashed", message)
    assert flow_state(client, page)[0] == "Completed"


def test_a_flow_run_of_a_prefect_worker_is_left_to_it_but_not_the_task_runs_of_its_killed_process(
    client: SyncPrefectClient, worker: WorkerSettings
) -> None:
    parameters = {"run": "small", "store": worker.store_uri}
    scheduled = client.create_flow_run(train, parameters=parameters, state=Running(), tags=["mine"])
    killed = RunPage(worker, scheduled.id)
    assert killed.end_left_behind(client) is None
    first = begin_stage(client, killed)
    again = RunPage(worker, scheduled.id)
    assert again.end_left_behind(client) is None
    second = begin_stage(client, again)
    assert [task_state(client, each)[0] for each in (first, second)] == ["Crashed", "Running"]
    assert "mine" in client.read_flow_run(scheduled.id).tags

    assert page_of(client, worker).end_left_behind(client) is None
    assert flow_state(client, again)[0] == "Running"
    assert task_state(client, second)[0] == "Crashed"


def test_a_refusal_of_the_server_is_a_warning(client: SyncPrefectClient, worker: WorkerSettings) -> None:
    warning = RunPage(worker, uuid4()).end_left_behind(client)
    assert str(warning).startswith("Prefect may show a killed process of run small as running")
    assert "404" in str(warning)
