"""The runner `ray` on a cluster of several nodes: the same artifacts as `in_process`, whatever is lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.pipeline import DeviceGroups, ResourcesConfig
from erl_pipeline.plan.plan import Plan, PlannedStage, RunState
from erl_pipeline.plan.runner import IN_PROCESS, InProcessConfig, RunnerCall
from erl_pipeline.plan.stage import Listener, WorkerSettings
from erl_pipeline.runs.driver import execute_run, open_run
from flows.ray.runner import RAY
from flows.ray.settings import RayConfig
from storage.errors import ConfigError, Interrupted
from storage.runs.run import RunStore
from tests.command_line.invoke import invoke
from tests.flows.ray.conftest import LocalCluster
from tests.flows.records import begun, file_hashes
from tests.flows.small_plans import (
    DIE_ONCE,
    FAIL,
    LOSE_NODE_ONCE,
    MEET,
    SAY_VARIABLE,
    SAY_VARIABLE_IN_TRAINING,
    SAY_VARIABLE_ON_DEVICE,
    SAY_WHERE,
    SAY_WHERE_ON_DEVICE,
    WAIT_TO_STOP,
    WRITE,
    WRITE_ON_DEVICE,
    Recorded,
    chain,
    planned,
    stop_when_computing,
    walk,
)
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]


def on(cluster: LocalCluster, **settings: object) -> RayConfig:
    """Two workers on the cluster without GPUs, unless the settings say otherwise."""
    given = {"address": cluster.address, "workers": 2, "device_stage": {"gpus": 0}, **settings}
    return RayConfig.model_validate(given)


@pytest.mark.usefixtures("api")
def test_order_outcomes_and_bytes_are_those_of_in_process(
    cluster: LocalCluster, store: Path, tmp_path: Path
) -> None:
    # Two of them wait for each other, so if one ran after the other, neither would end.
    meeting = [planned(MEET, "first", folder=store), planned(MEET, "second", folder=store)]
    stages = [*chain(3), *chain(2, WRITE_ON_DEVICE), *meeting]
    listener = Recorded()
    outcomes = walk(RAY, on(cluster), store, stages, listener=listener)
    directly = begun(tmp_path / "directly")
    expected = walk(IN_PROCESS, InProcessConfig(), directly, stages)
    ids = [each.artifact_id for each in stages]
    assert sorted(each.artifact_id for each in outcomes) == sorted(each.artifact_id for each in expected)
    assert [each.counters["names"] for each in outcomes if each.stage == "write"] == [1, 2, 3]
    assert not any(each.reused for each in outcomes)
    assert file_hashes(store, ids) == file_hashes(directly, ids)
    counted = listener.told.index(("counting", "write 0 of iteration 1", 1, "names"))
    advanced = listener.told.index(("advanced", "write 0 of iteration 1", 1, {"names": 1.0}))
    assert counted < advanced
    assert sorted(each.name for each in store.iterdir()) == [
        "artifacts",
        "first",
        "runs",
        "second",
        "staging",
    ]


@pytest.mark.usefixtures("api")
def test_workers_keep_to_devices_and_threads(cluster: LocalCluster, store: Path) -> None:
    """The model that a stage has loaded is there for the next stage; stages without a model do not use the
    device. The number of threads is the run's, not the number of processors that Ray reserves."""
    cluster.have_gpus()
    listener = Recorded()
    on_device = chain(3, SAY_WHERE_ON_DEVICE)
    # Both workers are there once these have met: until the second is, the first computes everything.
    meeting = [planned(MEET, "first", folder=store), planned(MEET, "second", folder=store)]
    beside = planned(SAY_WHERE, "beside", {"before": on_device[0], "met": meeting[0]})
    threads = planned(SAY_VARIABLE_ON_DEVICE, "OMP_NUM_THREADS")
    devices = planned(SAY_VARIABLE_ON_DEVICE, "CUDA_VISIBLE_DEVICES")
    none = planned(SAY_VARIABLE, "CUDA_VISIBLE_DEVICES")
    stages = [*meeting, *on_device, beside, threads, devices, none]
    walk(RAY, on(cluster, device_stage={"cpus": 2, "gpus": 2}), store, stages, listener=listener)
    messages = [str(message) for _, message in listener.told]
    said = dict(message.split(" in ") for message in messages if " in " in message)
    assert len({said[each.key] for each in on_device}) == 1
    assert said["beside"] != said["0"]
    assert "OMP_NUM_THREADS=1" in messages
    assert "CUDA_VISIBLE_DEVICES=0,1" in messages
    assert "CUDA_VISIBLE_DEVICES=" in messages


@pytest.mark.usefixtures("api")
def test_with_groups_each_worker_has_as_many_gpus_as_its_group(cluster: LocalCluster, store: Path) -> None:
    cluster.have_gpus()
    listener = Recorded()
    sampling = planned(SAY_VARIABLE_ON_DEVICE, "CUDA_VISIBLE_DEVICES")
    training = planned(SAY_VARIABLE_IN_TRAINING, "CUDA_VISIBLE_DEVICES", {"before": sampling})
    groups = ResourcesConfig(groups=DeviceGroups(sample=(0, 1), train=(2, 3, 4)))
    settings = on(cluster, device_stage={"cpus": 1})
    walk(RAY, settings, store, [sampling, training], listener=listener, resources=groups)
    said = [str(message).removeprefix("CUDA_VISIBLE_DEVICES=").split(",") for _, message in listener.told]
    assert [len(each) for each in said] == [2, 3]


@pytest.mark.usefixtures("api")
def test_a_worker_that_is_killed_is_replaced_and_its_stage_computed_again(
    cluster: LocalCluster, store: Path
) -> None:
    listener = Recorded()
    died = planned(DIE_ONCE, "survivor", folder=store)
    with pytest.raises(RuntimeError, match=r"OddError: after 7"):
        walk(
            RAY,
            on(cluster, workers=1),
            store,
            [died, planned(FAIL, "after", {"it": died})],
            listener=listener,
        )
    (names,) = file_hashes(store, [died.artifact_id])
    assert list(names) == ["names.txt"]
    (warning,) = [str(each[1]) for each in listener.told if each[0] == "warn"]
    assert warning.startswith("die_once survivor of iteration 1: the worker on node ")
    assert warning.endswith("its worker process has died. It is computed again.")


@pytest.mark.usefixtures("api")
def test_workers_that_compute_stop_when_they_are_asked_to(
    cluster: LocalCluster, store: Path, tmp_path: Path
) -> None:
    stages = [planned(WAIT_TO_STOP, name, folder=tmp_path) for name in ("one", "two")]
    with stop_when_computing(tmp_path, workers=2) as (stop, workers), pytest.raises(Interrupted):
        walk(RAY, on(cluster), store, stages, stop=stop)
    wait_for("the end of the workers", lambda: not any(psutil.pid_exists(worker) for worker in workers))


def carried_out(store: Path, runner: str, stages: list[PlannedStage]) -> list[str]:
    """Have a run's driver execute a plan; returns the ids in its ledger, in order."""
    config = load_config(
        ROOT / "configs" / "frozen_lake.yaml",
        ["name=small", "metrics=[]", "resources.threads=1", f"runner={runner}"],
    )
    plan = Plan(tuple(stages), (RunState(tasks="", models={}, initial={}),))
    with open_run(config, str(store), Listener(), threading.Event()) as opened:
        execute_run(opened, plan, frozenset())
    return [entry.artifact_id for entry in RunStore(str(store)).open("small").recorded()]


@pytest.mark.usefixtures("api")
def test_a_node_that_is_lost_leaves_nothing_double_and_the_same_bytes(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """One of three nodes ends while it computes a shard. No other node has room for its worker, so the others
    do the work."""
    cluster.have_nodes(3)
    shards = [planned(WRITE, f"shard {number}") for number in range(6)]
    shards.insert(2, planned(LOSE_NODE_ONCE, "shard of the lost node", folder=tmp_path))
    whole = planned(WRITE, "all of them", {f"shard {at}": each for at, each in enumerate(shards)})
    stages = [*shards, whole]
    runner = (
        f"{{type: ray, address: '{cluster.address}', workers: 3, "
        "device_stage: {cpus: 2, gpus: 0}, other_stage: {cpus: 2}}"
    )
    ledger = carried_out(tmp_path / "disturbed", runner, stages)
    assert (tmp_path / "lost").exists()
    ids = [each.artifact_id for each in stages]
    assert sorted(ledger) == sorted(ids)
    undisturbed = carried_out(tmp_path / "undisturbed", "in_process", stages)
    assert sorted(undisturbed) == sorted(ids)
    hashes = file_hashes(tmp_path / "disturbed", ids)
    assert hashes == file_hashes(tmp_path / "undisturbed", ids)


def test_more_than_the_cluster_has_is_refused_with_the_nodes(cluster: LocalCluster, store: Path) -> None:
    settings = on(cluster, start_seconds=1, device_stage={"gpus": 8, "cpus": 1, "memory_gb": 2})
    with pytest.raises(ConfigError) as refused:
        walk(RAY, settings, store, chain(1))
    message = str(refused.value)
    assert "resources.devices: 1, each with 1 CPUs, 8 GPUs, 2 GB of memory (runner.device_stage)" in message
    assert "1 other workers (runner.workers: 2), each with 1 CPUs (runner.other_stage)" in message
    assert "(2 CPUs, 0 GPUs, " in message
    groups = ResourcesConfig(groups=DeviceGroups(sample=(0, 1), train=tuple(range(2, 18))))
    with pytest.raises(ConfigError) as refused:
        walk(RAY, on(cluster, start_seconds=1, device_stage={}), store, chain(1), resources=groups)
    message = str(refused.value)
    for said in ("resources.groups.sample: 2 CPUs, 2 GPUs on", "resources.groups.train: 2 CPUs, 16 GPUs on"):
        assert said in message


def test_a_store_that_nodes_cannot_reach_is_refused(cluster: LocalCluster) -> None:
    """Other processes cannot use a store that is in the memory of one process."""
    listener = Recorded()
    settings = on(cluster, workers=1)
    worker = WorkerSettings(store_uri="memory://store", run="small", threads=1)
    call = RunnerCall(worker, ResourcesConfig(), listener, threading.Event())
    with pytest.raises(
        ConfigError, match=r"node .*: store memory://store is not the one that the driver sees"
    ):
        RAY.run(settings, call, lambda _runner: pytest.fail("a stage was about to be computed"))


def test_doctor_looks_at_every_node(cluster: LocalCluster, store: Path) -> None:
    cluster.have_nodes(2)
    given = ["--store", store, "--json"]
    looked = invoke("cluster", "doctor", "--address", cluster.address, *given)
    assert looked.status == 0, looked.errors
    assert sorted(finding["node"]["cpus"] for finding in looked.json)[:2] == [0, 2]
    assert all(abs(finding["clock_offset"]) < 1 for finding in looked.json)
    assert len({finding["report"]["code"] for finding in looked.json}) == 1

    wanting = invoke(
        "cluster",
        "doctor",
        ROOT / "configs" / "cluster_ray.yaml",
        "--address",
        cluster.address,
        *given,
        "--set",
        "runner.start_seconds=1",
        "--set",
        "runner.device_stage.cpus=64",
    )
    assert wanting.status == 2
    assert "resources.devices: 2, each with 64 CPUs (runner.device_stage)" in wanting.errors


def test_doctor_ends_with_2_and_the_node_that_is_not_fit(cluster: LocalCluster) -> None:
    looked = invoke("cluster", "doctor", "--address", cluster.address, "--store", "memory://store")
    assert looked.status == 2
    assert "problem" in looked.output
    assert ": store memory://store is not the one that the driver sees" in looked.errors


DRIVER = """
import sys
from pathlib import Path
from flows.ray.runner import RAY
from flows.ray.settings import RayConfig
from tests.flows.small_plans import WAIT_TO_STOP, planned, walk
store = Path(sys.argv[1])
walk(RAY, RayConfig(address=sys.argv[2]), store, [planned(WAIT_TO_STOP, "one", folder=store)])
"""


def test_workers_end_when_their_driver_is_killed(api: str, cluster: LocalCluster, store: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store), cluster.address],
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": api},
    )

    def workers() -> list[int]:
        assert driver.poll() is None
        return [int(each.name) for each in store.iterdir() if each.name.isdigit()]

    worker = psutil.Process(wait_for("a worker", workers, interval=0.01)[0])
    driver.kill()
    driver.wait()
    psutil.wait_procs([worker], timeout=60.0)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_an_address_without_a_cluster_is_refused_at_once(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        free = other.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ConfigError, match=rf"runner.address: 127.0.0.1:{free}: no Ray cluster answers"):
        walk(RAY, RayConfig(address=f"127.0.0.1:{free}"), store, chain(1))
    assert time.monotonic() - began < 60  # Ray itself tries for minutes.


def test_a_server_of_another_kind_is_no_cluster(store: Path) -> None:
    with HTTPServer(("", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(ConfigError, match=r"the server there is not a Ray head"):
            walk(RAY, RayConfig(address=f"127.0.0.1:{server.server_port}"), store, chain(1))
