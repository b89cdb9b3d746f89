"""What the runner `prefect_workers` asks a Prefect server for, and what it refuses before a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.workers.process import ProcessWorker

from erl_pipeline.plan.resources import WorkerSettings
from flows.deployments import connected
from flows.prefect_workers.flow_runs import FlowRuns
from flows.prefect_workers.reception import Invitation
from flows.prefect_workers.runner import PREFECT_WORKERS
from flows.prefect_workers.settings import PrefectWorkersConfig
from storage.errors import ConfigError
from tests.flows.prefect_workers.dialling import dialling_in
from tests.flows.small_plans import chain, walk

WORKER = WorkerSettings(store_uri="/store", run="small", threads=3)
INVITATION = Invitation("10.0.0.1:7070", "c0ffee", "ticket")


@pytest.fixture
def client(api: str) -> Iterator[SyncPrefectClient]:
    with connected(api) as client:
        yield client


def make_pool(client: SyncPrefectClient, name: str, type_: str = "process") -> None:
    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(WorkPoolCreate(name=name, type=type_, base_job_template=template))


def flow_runs(api: str, devices: int = 0, **settings: object) -> FlowRuns:
    given = PrefectWorkersConfig.model_validate({"work_pool": "none", "address": "10.0.0.1:7070", **settings})
    return FlowRuns(api, given, WORKER, devices)


def test_a_work_pool_is_refused_unless_its_workers_can_start_flow_runs(
    api: str, client: SyncPrefectClient
) -> None:
    missing = flow_runs(api, work_pool="missing")
    with pytest.raises(
        ConfigError, match=r"^runner.work_pool: missing: .*create it with: prefect work-pool create missing"
    ):
        missing.prepare()
    make_pool(client, "containers", "docker")
    with pytest.raises(
        ConfigError,
        match=r"^runner.device_work_pool: containers: the work pool has type docker; allowed is process",
    ):
        flow_runs(api, devices=1, device_work_pool="containers").prepare()
    make_pool(client, "idle")
    with pytest.raises(ConfigError, match=r"idle: no worker of this work pool is online; .* --pool idle"):
        flow_runs(api, work_pool="idle").prepare()
    client.send_worker_heartbeat("idle", "machine", heartbeat_interval_seconds=30.0)
    client.update_work_pool("idle", WorkPoolUpdate(is_paused=True))
    with pytest.raises(ConfigError, match=r"paused; continue it with: prefect work-pool resume idle"):
        flow_runs(api, work_pool="idle").prepare()


def test_flow_runs_are_asked_for_in_the_pool_of_their_place(api: str, client: SyncPrefectClient) -> None:
    for name in ("plain", "gpus"):
        make_pool(client, name)
        client.send_worker_heartbeat(name, "machine", heartbeat_interval_seconds=30.0)
    asking = flow_runs(api, devices=1, workers=2, work_pool="plain", device_work_pool="gpus")
    asking.prepare()
    asking.prepare()  # A deployment that exists is used again.
    asked = [asking.ask(place, INVITATION) for place in (0, 1)]
    first, second = [client.read_flow_run(each.id) for each in asked]
    assert (first.work_pool_name, second.work_pool_name) == ("gpus", "plain")
    assert [first.name, second.name] == ["small, worker 1", "small, worker 2"]
    assert first.parameters == {
        "run": "small",
        "address": "10.0.0.1:7070",
        "key": "c0ffee",
        "ticket": "ticket",
    }
    variables = first.job_variables or {}
    assert {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}.items() <= variables["env"].items()
    assert first.deployment_id is not None
    deployment = client.read_deployment(first.deployment_id)
    assert deployment.entrypoint == "flows.prefect_workers.flow.stage_worker"
    assert deployment.pull_steps == []
    ended, state = asking.state(asked[0])
    assert (ended, state.partition(",")[0]) == (False, "Scheduled")
    asking.cancel(asked[0])
    ended, state = asking.state(asked[0])
    assert (ended, state.partition(",")[0]) == (True, "Cancelled")
    asking.cancel(asked[1])


@pytest.mark.usefixtures("no_configured_api")
def test_without_a_named_server_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set PREFECT_API_URL, here and for the workers"):
        walk(PREFECT_WORKERS, dialling_in(), tmp_path, chain(1))
    assert list(tmp_path.iterdir()) == []
