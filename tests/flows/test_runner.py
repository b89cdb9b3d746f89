"""The runner `prefect`: the same artifacts as `in_process`, and a record of them on the server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import psutil
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import ValidationError

from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.runner import IN_PROCESS, InProcessConfig
from erl_pipeline.plan.stage import StageOutcome
from flows import stage_tasks
from flows.local_server import answers
from flows.runner import PREFECT, PrefectConfig
from flows.submissions import TaskOptions
from flows.training_flow import TRAINING, StageTimedOut
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, Interrupted
from storage.runs.run import RunStore
from tests.flows.small_plans import (
    DIE_ONCE,
    FAIL,
    MEET,
    SAY_WHERE,
    SAY_WHERE_ON_DEVICE,
    STORE_AWAY_ONCE,
    WAIT_TO_STOP,
    WRITE_ON_DEVICE,
    OddError,
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


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the run that small plans are for."""
    return begun(tmp_path / "store")


def begun(store: Path) -> Path:
    config = load_config(ROOT / "configs" / "frozen_lake.yaml", ["name=small"])
    RunStore(str(store)).create("small", config.model_dump(mode="json"))
    return store


def file_hashes(store: Path, artifact_ids: list[str]) -> list[dict[str, str]]:
    artifacts = ArtifactStore(str(store))
    opened = [artifacts.open(each).manifest for each in artifact_ids]
    return [{file.path: file.sha256 for file in manifest.files} for manifest in opened]


def ask(api: str, what: str, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.post(f"{api}/{what}/filter", json=body).raise_for_status().json()
    return found


def flow_run_of(api: str, store: Path) -> dict[str, Any]:
    runs = ask(api, "flow_runs", sort="START_TIME_DESC")
    (run,) = [each for each in runs if each["parameters"].get("store") == str(store)]
    return run


def task_runs_of(api: str, flow_run: dict[str, Any]) -> list[dict[str, Any]]:
    runs = ask(api, "task_runs", flow_runs={"id": {"any_": [flow_run["id"]]}})
    return sorted(runs, key=lambda run: str(run["start_time"]))


@pytest.mark.parametrize("settings", [THREADS, TWO_PROCESSES], ids=["threads", "processes"])
def test_order_outcomes_and_bytes_are_those_of_in_process(
    api: str, settings: PrefectConfig, store: Path, tmp_path: Path
) -> None:
    stages = [*chain(3), *chain(2, WRITE_ON_DEVICE)]
    listener = Recorded()
    directly = begun(tmp_path / "directly")
    expected = walk(IN_PROCESS, InProcessConfig(), directly, stages)
    outcomes = walk(PREFECT, settings, store, stages, listener=listener)
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
    assert second["state"]["message"] == f"Committed artifact {stages[1].artifact_id}"
    artifacts = ask(api, "artifacts", flow_runs={"id": {"any_": [flow_run["id"]]}})
    assert {each["key"]: each["type"] for each in artifacts} == {
        "small-iterations": "table",
        "small-summary": "markdown",
    }
    (summary,) = [each["data"] for each in artifacts if each["key"] == "small-summary"]
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


@pytest.mark.usefixtures("api")
def test_two_processes_compute_at_the_same_time(store: Path) -> None:
    """Each waits for the other, so if one ran after the other, neither would end."""
    stages = [planned(MEET, "first", folder=store), planned(MEET, "second", folder=store)]
    assert len(walk(PREFECT, TWO_PROCESSES, store, stages)) == 2


def test_a_worker_that_is_killed_is_replaced_and_its_stage_computed_again(api: str, store: Path) -> None:
    listener = Recorded()
    stage = planned(DIE_ONCE, "survivor", folder=store)
    (outcome,) = walk(PREFECT, TWO_PROCESSES, store, [stage], listener=listener)
    assert outcome.counters["names"] == 1
    ((_, warning),) = [each for each in listener.told if each[0] == "warn"]
    assert str(warning).startswith(
        "die_once survivor of iteration 1: the worker process ended abruptly; see "
    )
    (names,) = file_hashes(store, [stage.artifact_id])
    assert list(names) == ["names.txt"]
    states = [run["state_type"] for run in task_runs_of(api, flow_run_of(api, store))]
    assert states == ["CRASHED", "COMPLETED"]


def test_workers_that_compute_stop_when_they_are_asked_to(api: str, store: Path, tmp_path: Path) -> None:
    stages = [planned(WAIT_TO_STOP, name, folder=tmp_path) for name in ("one", "two")]
    with stop_when_computing(tmp_path, workers=2) as (stop, workers), pytest.raises(Interrupted):
        walk(PREFECT, TWO_PROCESSES, store, stages, stop=stop)
    assert not any(psutil.pid_exists(worker) for worker in workers)
    flow_run = flow_run_of(api, store)
    assert flow_run["state_type"] == "CANCELLED"
    assert {run["state_type"] for run in task_runs_of(api, flow_run)} == {"CANCELLED"}


@pytest.mark.usefixtures("api")
def test_stages_that_need_a_device_stay_with_the_worker_that_has_it(store: Path) -> None:
    """The model that one of them has loaded is there for the next; stages without a model do not use the
    device."""
    listener = Recorded()
    on_device = chain(3, SAY_WHERE_ON_DEVICE)
    beside = planned(SAY_WHERE, "beside", {"before": on_device[0]})
    walk(PREFECT, TWO_PROCESSES, store, [*on_device, beside], listener=listener)
    said = dict(str(message).split(" in ") for _, message in listener.told if " in " in str(message))
    assert len({said[each.key] for each in on_device}) == 1
    assert said["beside"] != said["0"]


@pytest.mark.usefixtures("api")
def test_an_error_that_cannot_be_sent_arrives_with_its_words(store: Path) -> None:
    with pytest.raises(RuntimeError, match=r"OddError: first 7"):
        walk(PREFECT, TWO_PROCESSES, store, [planned(FAIL, "first")])


def test_a_fault_that_can_pass_is_a_retry_of_prefect(api: str, store: Path) -> None:
    settings = PrefectConfig(stages={"store_away_once": TaskOptions(retry_delay_seconds=(0.1,))})
    listener = Recorded()
    stage = planned(STORE_AWAY_ONCE, "first", folder=store)
    (outcome,) = walk(PREFECT, settings, store, [stage], listener=listener)
    assert outcome.counters["names"] == 1
    (run,) = task_runs_of(api, flow_run_of(api, store))
    assert (run["state_type"], run["run_count"]) == ("COMPLETED", 2)
    warning = "store_away_once first of iteration 1 failed and is tried again: no answer"
    assert ("warn", warning) in listener.told


def test_wrong_input_is_not_tried_again(api: str, store: Path) -> None:
    settings = PrefectConfig(stages={"fail": TaskOptions(retry_delay_seconds=(0.1, 0.1))})
    with pytest.raises(OddError, match="first 7"):
        walk(PREFECT, settings, store, [planned(FAIL, "first")])
    (run,) = task_runs_of(api, flow_run_of(api, store))
    assert (run["state_type"], run["run_count"]) == ("FAILED", 1)


def test_a_stage_that_takes_too_long_is_asked_to_stop(api: str, store: Path) -> None:
    settings = PrefectConfig(stages={"wait_to_stop": TaskOptions(timeout_seconds=0.5)})
    with pytest.raises(StageTimedOut, match=r"runner\.stages\.wait_to_stop\.timeout_seconds \(0\.5 s\)"):
        walk(PREFECT, settings, store, [planned(WAIT_TO_STOP, "one", folder=store)])
    flow_run = flow_run_of(api, store)
    assert flow_run["state_type"] == "FAILED"
    assert [run["state_name"] for run in task_runs_of(api, flow_run)] == ["TimedOut"]


def test_a_flow_run_that_is_cancelled_on_prefects_page_ends_and_goes_on_later(api: str, store: Path) -> None:
    def cancel() -> None:
        wait_for("the stage", lambda: [each for each in store.iterdir() if each.name.isdigit()])
        state = {"state": {"type": "CANCELLING"}, "force": True}
        httpx.post(f"{api}/flow_runs/{flow_run_of(api, store)['id']}/set_state", json=state)

    cancelling = Thread(target=cancel)
    cancelling.start()
    with pytest.raises(Interrupted):
        walk(PREFECT, THREADS, store, [*chain(1), planned(WAIT_TO_STOP, "one", folder=store)])
    cancelling.join()
    flow_run = flow_run_of(api, store)
    assert flow_run["state_type"] == "CANCELLED"
    states = [run["state_type"] for run in task_runs_of(api, flow_run)]
    assert states == ["COMPLETED", "CANCELLED"]
    assert [each.reused for each in walk(PREFECT, THREADS, store, chain(2))] == [True, False]


TAGGED = """
import sys
from pathlib import Path
from flows.runner import PREFECT, PrefectConfig
from flows.submissions import TaskOptions
from tests.flows.small_plans import SAY_WHEN, planned, walk
store = Path(sys.argv[1])
options = {"say_when": TaskOptions(tags=("alone",))}
settings = PrefectConfig(task_runner="processes", workers=2, stages=options)
walk(PREFECT, settings, store, [planned(SAY_WHEN, name, folder=store) for name in ("one", "two")])
"""


def test_a_limit_of_prefect_holds_stages_with_its_tag(api: str, store: Path) -> None:
    """Each of the two stages says when it begins and ends; with a limit of 1 these do not overlap."""
    httpx.post(f"{api}/v2/concurrency_limits/", json={"name": "tag:alone", "limit": 1}).raise_for_status()
    environment = {**os.environ, "PREFECT_API_URL": api}
    subprocess.run([sys.executable, "-c", TAGGED, str(store)], cwd=ROOT, env=environment, check=True)
    moments = [line.split()[0] for line in (store / "moments").read_text().splitlines()]
    assert moments == ["begins", "ends", "begins", "ends"]


LOGGED = """
import sys
from pathlib import Path
from flows.runner import PREFECT, PrefectConfig
from tests.flows.small_plans import SAY_WHERE, planned, walk
settings = PrefectConfig(task_runner="processes", workers=2)
walk(PREFECT, settings, Path(sys.argv[1]), [planned(SAY_WHERE, "here")])
"""


def test_the_log_of_a_stage_stands_with_its_task_run(api: str, store: Path) -> None:
    environment = {**os.environ, "PREFECT_API_URL": api, "PREFECT_LOGGING_TO_API_ENABLED": "true"}
    subprocess.run([sys.executable, "-c", LOGGED, str(store)], cwd=ROOT, env=environment, check=True)
    (run,) = task_runs_of(api, flow_run_of(api, store))

    def lines() -> list[str]:
        found = ask(api, "logs", logs={"task_run_id": {"any_": [run["id"]]}})
        texts = [each["message"] for each in found]
        return texts if any(each.startswith("Committed in") for each in texts) else []

    assert any(re.match(r"here in \d+", each) for each in wait_for("the log", lines))


def test_an_artifact_is_an_asset_with_those_that_it_was_made_from(api: str, store: Path) -> None:
    stages = chain(2)
    walk(PREFECT, THREADS, store, stages)
    keys = [f"file://{store}/artifacts/{each.artifact_id}" for each in stages]
    asked = {
        "filter": {
            "event": {"name": ["prefect.asset.materialization.succeeded"]},
            "resource": {"id": keys},
            "order": "ASC",
        }
    }

    def events() -> list[dict[str, Any]]:
        found = httpx.post(f"{api}/events/filter", json=asked).raise_for_status().json()["events"]
        return list(found) if len(found) == 2 else []

    first, second = wait_for("the events of both artifacts", events)
    assert [each["resource"]["prefect.resource.id"] for each in (first, second)] == keys
    made_from = [
        [one["prefect.resource.id"] for one in each["related"] if one["prefect.resource.role"] == "asset"]
        for each in (first, second)
    ]
    assert made_from == [[], [keys[0]]]


def test_a_state_hook_of_the_user_is_called(api: str, store: Path) -> None:
    seen: list[tuple[str, str]] = []

    @TRAINING.on_completion
    def note(flow: Any, flow_run: Any, state: Any) -> None:
        seen.append((flow_run.name, state.type.value))

    try:
        walk(PREFECT, THREADS, store, chain(1))
    finally:
        TRAINING.on_completion_hooks.remove(note)
    assert seen == [("small", "COMPLETED")]


def test_options_of_an_unknown_stage_are_refused(store: Path) -> None:
    settings = PrefectConfig(stages={"wrote": TaskOptions(timeout_seconds=1)})
    with pytest.raises(ConfigError, match=r"runner\.stages: wrote: no such stage; the run has write"):
        walk(PREFECT, settings, store, chain(1))


class Kills(Recorded):
    """A listener that does something, such as killing a server, when the first stage is done."""

    def __init__(self, kill: Callable[[], object]) -> None:
        super().__init__()
        self._kill = kill
        self._done = False

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        if not self._done:
            self._done = True
            self._kill()

    @property
    def warnings(self) -> list[str]:
        return [str(each[1]) for each in self.told if each[0] == "warn"]


@pytest.fixture
def owned(prefect_home: Path, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server that is configured for this test, and the process that started it."""
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.flows.hold_server", str(tmp_path / "server.log")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": ""},
    )
    assert owner.stdout is not None
    url = owner.stdout.readline().strip()
    assert answers(url)
    with temporary_settings({PREFECT_API_URL: url}):
        yield url, owner
    owner.kill()
    owner.wait()


@pytest.mark.parametrize("settings", [THREADS, TWO_PROCESSES], ids=["threads", "processes"])
def test_a_run_whose_prefect_server_is_killed_ends_and_says_what_prefect_missed(
    settings: PrefectConfig,
    store: Path,
    owned: tuple[str, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefect's client would try again for a minute or two."""
    monkeypatch.setattr(stage_tasks, "_PATIENCE_SECONDS", 0.5)
    url, owner = owned

    def kill() -> None:
        def told() -> list[dict[str, Any]]:
            return [each for each in ask(url, "flow_runs") if each["parameters"].get("store") == str(store)]

        wait_for("the flow run", told)
        owner.kill()
        owner.wait()

    listener = Kills(kill)
    outcomes = walk(PREFECT, settings, store, chain(3), listener=listener)
    assert len(outcomes) == 3
    assert listener.warnings[-1].startswith(
        f"Prefect's API at {url} does not answer. Its record of this flow run and of the 3 stages that were "
    )
    wait_for("the end of the server", lambda: not answers(url))
    # No process holds the pipe that the server would have inherited.
    assert owner.stdout is not None
    assert owner.stdout.read() == ""


def test_a_run_is_stopped_although_its_prefect_server_is_gone(
    store: Path,
    owned: tuple[str, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_tasks, "_PATIENCE_SECONDS", 0.5)
    stop, (_, owner) = Event(), owned

    def kill_and_stop() -> None:
        owner.kill()
        owner.wait()
        stop.set()

    listener = Kills(kill_and_stop)
    with pytest.raises(Interrupted):
        walk(PREFECT, THREADS, store, chain(3), listener=listener, stop=stop)
    assert listener.warnings[-1].endswith("what they have committed is whole")
    assert ArtifactStore(str(store)).find(chain(1)[0].artifact_id, "write") is not None


class KillsAtStart(Recorded):
    """A listener that kills a server while the first stage waits for it."""

    def __init__(self, kill: Callable[[], object]) -> None:
        super().__init__()
        self._killing = Thread(target=kill)

    def stage_started(self, title: str) -> None:
        if not self._killing.ident:
            self._killing.start()


@pytest.mark.usefixtures("prefect_home", "no_configured_api")
def test_a_run_whose_own_prefect_server_is_killed_while_it_starts_goes_on(store: Path) -> None:
    others = psutil.Process().children()

    def servers() -> list[psutil.Process]:
        new = [each for each in psutil.Process().children() if each not in others]
        return [each for each in new if "flows.server_process" in each.cmdline()]

    def kill() -> None:
        for server in wait_for("the server's process", servers, interval=0.01):
            server.kill()

    listener = KillsAtStart(kill)
    assert len(walk(PREFECT, THREADS, store, chain(2), listener=listener)) == 2
    warnings = [str(each[1]) for each in listener.told if each[0] == "warn"]
    first, last = warnings
    assert first == "Prefect's server was killed while it started (SIGKILL). The run continues without it"
    assert "Its record of this flow run and of the 2 stages that were computed is not complete" in last


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
