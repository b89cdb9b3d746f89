"""The runner `prefect`: the same artifacts as `in_process`, and a record of them on the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from erl_pipeline.config.pipeline import DeviceGroups, ResourcesConfig
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import IN_PROCESS, InProcessConfig
from flows.runner import PREFECT, PrefectConfig, visible_devices
from storage.errors import Interrupted
from storage.runs.documents import run_identity
from tests.flows.records import ask, begun, file_hashes, flow_run_of, task_runs_of
from tests.flows.small_plans import (
    DIE_ONCE,
    FAIL,
    MEET,
    MEET_SAMPLING,
    MEET_TRAINING,
    SAY_VARIABLE_IN_TRAINING,
    SAY_VARIABLE_ON_DEVICE,
    SAY_WHERE,
    SAY_WHERE_ON_DEVICE,
    WAIT_TO_STOP,
    WRITE_ON_DEVICE,
    Recorded,
    chain,
    planned,
    stop_when_computing,
    walk,
)
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
THREADS = PrefectConfig()
TWO_PROCESSES = PrefectConfig(task_runner="processes", workers=2)


@pytest.mark.parametrize(
    ("settings", "background_bytes"),
    [(THREADS, None), (THREADS, 0), (TWO_PROCESSES, 0)],
    ids=["threads", "threads, commits beside", "processes, commits beside"],
)
def test_order_outcomes_and_bytes_are_those_of_in_process(
    api: str, settings: PrefectConfig, background_bytes: int | None, store: Path, tmp_path: Path
) -> None:
    stages = [*chain(3), *chain(2, WRITE_ON_DEVICE)]
    listener = Recorded()
    directly = begun(tmp_path / "directly")
    expected = walk(IN_PROCESS, InProcessConfig(), directly, stages)
    outcomes = walk(PREFECT, settings, store, stages, listener=listener, background_bytes=background_bytes)
    ids = [each.artifact_id for each in stages]
    assert sorted(each.artifact_id for each in outcomes) == sorted(each.artifact_id for each in expected)
    assert [each.counters["names"] for each in outcomes if each.stage == "write"] == [1, 2, 3]
    assert not any(each.reused for each in outcomes)
    assert file_hashes(store, ids) == file_hashes(directly, ids)
    assert ("counting", "write 0 of iteration 1", 1, "names") in listener.told
    assert ("advanced", "write 2 of iteration 1", 1, {"names": 1.0}) in listener.told

    flow_run = flow_run_of(api, store)
    assert (flow_run["name"], flow_run["state_type"]) == ("small", "COMPLETED")
    task_runs = task_runs_of(api, flow_run)
    assert {run["name"]: (run["state_type"], run["tags"]) for run in task_runs} == {
        each.title: ("COMPLETED", []) for each in stages
    }
    second = next(run for run in task_runs if run["name"] == "write 1 of iteration 1")
    first = next(run for run in task_runs if run["name"] == "write 0 of iteration 1")
    assert second["task_inputs"]["inputs"] == [{"input_type": "task_run", "id": first["id"]}]
    assert first["start_time"] <= first["end_time"] <= second["start_time"]
    done = "Committed" if background_bytes is None else "Wrote"
    assert second["state"]["message"] == f"{done} artifact {stages[1].artifact_id}"
    artifacts = ask(api, "artifacts", flow_runs={"id": {"any_": [flow_run["id"]]}})
    identity = run_identity(str(store), "small")[:8]
    assert {each["key"]: each["type"] for each in artifacts} == {
        f"small-{identity}-iterations": "table",
        f"small-{identity}-summary": "markdown",
    }
    (summary,) = [each["data"] for each in artifacts if each["type"] == "markdown"]
    assert "This flow run computed 5 artifacts" in summary


def test_what_is_reused_is_no_task_run_and_starts_no_server(
    api: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = chain(3)
    walk(IN_PROCESS, InProcessConfig(), store, stages[:2])
    outcomes = walk(PREFECT, THREADS, store, stages[:2])
    assert [each.reused for each in outcomes] == [True, True]
    assert [run for run in ask(api, "flow_runs") if run["parameters"].get("store") == str(store)] == []
    walk(PREFECT, THREADS, store, stages)
    (task_run,) = task_runs_of(api, flow_run_of(api, store))
    assert task_run["name"] == "write 2 of iteration 1"


@pytest.mark.parametrize("background_bytes", [None, 0])
def test_a_worker_that_is_killed_is_replaced_and_its_stage_computed_again(
    api: str, store: Path, background_bytes: int | None
) -> None:
    """Then one fails with an error that cannot be sent, which arrives with its words."""
    listener = Recorded()
    stage = planned(DIE_ONCE, "survivor", folder=store)
    stages = [stage, planned(FAIL, "after", {"it": stage})]
    with pytest.raises(RuntimeError, match=r"OddError: after 7"):
        walk(PREFECT, TWO_PROCESSES, store, stages, listener=listener, background_bytes=background_bytes)
    # A busy machine's server may be late with its records, which is told too.
    warnings = [str(each[1]) for each in listener.told if each[0] == "warn"]
    (warning,) = [each for each in warnings if each.startswith("die_once survivor")]
    assert warning.startswith("die_once survivor of iteration 1: the worker process ended abruptly; see ")
    (names,) = file_hashes(store, [stage.artifact_id])
    assert list(names) == ["names.txt"]
    states = [run["state_type"] for run in task_runs_of(api, flow_run_of(api, store))]
    assert states == ["CRASHED", "COMPLETED", "FAILED"]


def test_workers_that_compute_stop_when_they_are_asked_to(api: str, store: Path, tmp_path: Path) -> None:
    stages = [planned(WAIT_TO_STOP, name, folder=tmp_path) for name in ("one", "two")]
    with stop_when_computing(tmp_path, workers=2) as (stop, workers), pytest.raises(Interrupted):
        walk(PREFECT, TWO_PROCESSES, store, stages, stop=stop)
    assert not any(psutil.pid_exists(worker) for worker in workers)
    flow_run = flow_run_of(api, store)
    assert flow_run["state_type"] == "CANCELLED"
    assert {run["state_type"] for run in task_runs_of(api, flow_run)} == {"CANCELLED"}


@pytest.mark.usefixtures("api")
def test_two_processes_compute_at_the_same_time_and_one_has_the_device(store: Path) -> None:
    """Two stages wait for each other, so if one ran after the other, neither would end. The model that a
    stage has loaded is there for the next; stages without a model do not use the device."""
    listener = Recorded()
    meeting = [planned(MEET, "first", folder=store), planned(MEET, "second", folder=store)]
    on_device = chain(3, SAY_WHERE_ON_DEVICE)
    beside = planned(SAY_WHERE, "beside", {"before": on_device[0]})
    stages = [*meeting, *on_device, beside]
    assert len(walk(PREFECT, TWO_PROCESSES, store, stages, listener=listener)) == len(stages)
    said = dict(str(message).split(" in ") for _, message in listener.told if " in " in str(message))
    assert len({said[each.key] for each in on_device}) == 1
    assert said["beside"] != said["0"]


GROUPS = ResourcesConfig(groups=DeviceGroups(sample=(0, 1), train=(2, 4, 3)))


def test_gpus_of_a_group_are_counted_within_those_that_are_visible() -> None:
    assert [visible_devices(place, GROUPS, None) for place in (0, 1)] == ["0,1", "2,4,3"]
    assert [visible_devices(place, GROUPS, "7,6,5,4,GPU-3") for place in (0, 1)] == ["7,6", "5,GPU-3,4"]


@pytest.mark.usefixtures("api")
def test_sampling_and_training_overlap_and_see_the_gpus_of_their_group(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real worker processes, one after the other, several times. At last each waits for the other, so if
    one ran after the other, neither would end."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,6,5,4,GPU-3")
    name, stages = "CUDA_VISIBLE_DEVICES", list[PlannedStage]()
    for number in range(4):
        stage = (SAY_VARIABLE_ON_DEVICE, SAY_VARIABLE_IN_TRAINING)[number % 2]
        before = {"before": stages[-1]} if stages else {}
        stages.append(planned(stage, name, before, iteration=1 + number))
    last = {"before": stages[-1]}
    stages.append(planned(MEET_SAMPLING, "first", last, iteration=5, folder=store))
    stages.append(planned(MEET_TRAINING, "second", last, iteration=5, folder=store))
    listener = Recorded()
    assert len(walk(PREFECT, TWO_PROCESSES, store, stages, listener=listener, resources=GROUPS)) == 6
    assert listener.told == [("warn", f"{name}={each}") for each in ["7,6", "5,GPU-3,4"] * 2]


DRIVER = """
import sys
from pathlib import Path
from flows.runner import PREFECT, PrefectConfig
from flows.submissions import TaskOptions
from flows.training_flow import TRAINING, StageTimedOut
from tests.flows.small_plans import WAIT_TO_STOP, planned, walk
store = Path(sys.argv[1])
stages = [planned(WAIT_TO_STOP, "one", folder=store)]
walk(PREFECT, PrefectConfig(task_runner="processes"), store, stages)
"""


def test_workers_end_when_their_driver_is_killed_and_its_flow_run_when_the_run_goes_on(
    api: str, store: Path
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store)], cwd=ROOT, env={**os.environ, "PREFECT_API_URL": api}
    )

    def workers() -> list[int]:
        assert driver.poll() is None
        return [int(each.name) for each in store.iterdir() if each.name.isdigit()]

    def flow_runs() -> list[dict[str, Any]]:
        runs = ask(api, "flow_runs", sort="START_TIME_ASC")
        return [each for each in runs if each["parameters"].get("store") == str(store)]

    worker = psutil.Process(wait_for("a worker", workers, interval=0.01)[0])
    wait_for("the task run", lambda: [each for run in flow_runs() for each in task_runs_of(api, run)])
    driver.kill()
    driver.wait()
    psutil.wait_procs([worker], timeout=60.0)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    (left,) = flow_runs()
    assert left["state_type"] == "RUNNING"

    listener = Recorded()
    walk(PREFECT, THREADS, store, chain(1), listener=listener)
    assert not [each for each in listener.told if each[0] == "warn"]
    killed, went_on = flow_runs()
    assert [run["state_type"] for run in (killed, went_on)] == ["CRASHED", "COMPLETED"]
    assert killed["state"]["message"].endswith(f"run small was continued by flow run small ({went_on['id']})")
    assert [run["state_type"] for run in task_runs_of(api, killed)] == ["CRASHED"]


def test_threads_compute_one_stage_at_a_time() -> None:
    with pytest.raises(ValidationError, match=r"set runner\.task_runner to processes"):
        PrefectConfig(workers=2)


def test_the_plug_in_is_found_without_importing_prefect() -> None:
    code = "import sys, flows.runner; print([each for each in ('prefect', 'torch') if each in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
