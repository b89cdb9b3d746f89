"""A small real run on two workers of a Prefect work pool, one of which is killed while it computes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import WorkerStatus
from prefect.workers.process import ProcessWorker

from erl_pipeline.runs.certificate.targets import writers
from flows.deployments import connected
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke
from tests.flows.test_runner import ask
from tests.integration.runs import artifact_hashes
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
KEPT = ("prepare_tasks", "bootstrap")
"""Stages whose artifacts the run takes from the finished one, since the cold start takes long."""


@pytest.fixture
def prefect_workers(api: str, tmp_path: Path) -> Iterator[list[psutil.Process]]:
    """Two `prefect worker start`, each of which takes one flow run at a time, as on two machines."""
    words = ["-m", "prefect", "worker", "start", "--pool", "stages", "--limit", "1", "--name"]
    variables = {
        **os.environ,
        "PREFECT_API_URL": api,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PYTHONPATH": str(ROOT),
    }
    with connected(api) as client, (tmp_path / "workers.log").open("w") as log:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name="stages", type="process", base_job_template=template))
        started = [
            subprocess.Popen(
                [sys.executable, *words, name],
                stdout=log,
                stderr=log,
                cwd=tmp_path,
                env=variables,
                start_new_session=True,
            )
            for name in ("one", "two")
        ]
        try:
            wait_for(
                "two workers",
                lambda: (
                    [each.status for each in client.read_workers_for_work_pool("stages")]
                    == [WorkerStatus.ONLINE] * 2
                ),
            )
            yield [psutil.Process(each.pid) for each in started]
        finally:
            for each in started:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_has_the_same_artifacts_and_bytes(
    api: str,
    prefect_workers: list[psutil.Process],
    finished: FinishedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = tmp_path / "store"
    for stage in KEPT:
        shutil.copytree(finished.store / "artifacts" / stage, store / "artifacts" / stage)
    monkeypatch.setenv("PREFECT_API_URL", api)
    killed: list[int] = []

    def kill_one() -> None:
        mine = wait_for("a stage of a worker", lambda: writers(store) - {os.getpid()}, interval=0.01)
        killed.append(min(mine))
        os.kill(killed[0], signal.SIGKILL)

    killing = threading.Thread(target=kill_one)
    killing.start()
    runner = "runner={type: prefect_workers, work_pool: stages, workers: 2, address: '127.0.0.1:0'}"
    training = invoke("train", finished.config, "--store", store, "--set", runner)
    killing.join()
    assert training.status == 0, training.errors
    assert training.errors.count("is gone. It is computed again.") == 1

    assert artifact_hashes(store) == artifact_hashes(finished.store)
    ledger = [entry.artifact_id for entry in RunStore(str(store)).open("small").recorded()]
    assert len(ledger) == len(set(ledger)) == len(artifact_hashes(store))
    assert list((store / "staging").iterdir()) == []
    wait_for("the end of all flow runs", lambda: not [c for each in prefect_workers for c in each.children()])

    def states() -> list[str]:
        pool = {"name": {"any_": ["stages"]}}
        return sorted(each["state_name"] for each in ask(api, "flow_runs", work_pools=pool))

    wait_for("the last states", lambda: states() == ["Completed", "Completed", "Crashed"])
