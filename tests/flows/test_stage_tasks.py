"""What Prefect does with the stages of a run: retries, timeouts, limits, cancelling, hooks, logs, assets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from flows.runner import PREFECT, PrefectConfig
from flows.stage_tasks import StageTasks
from flows.submissions import Submissions, TaskOptions
from flows.training_flow import TRAINING, StageTimedOut
from storage.errors import ConfigError, Interrupted
from tests.flows.records import ask, flow_run_of, post, task_runs_of
from tests.flows.small_plans import (
    FAIL,
    STORE_AWAY_ONCE,
    WAIT_TO_STOP,
    OddError,
    Recorded,
    chain,
    planned,
    walk,
)
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
THREADS = PrefectConfig()
TWO_PROCESSES = PrefectConfig(task_runner="processes", workers=2)


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


@pytest.mark.parametrize("settings", [THREADS, TWO_PROCESSES], ids=["threads", "processes"])
def test_a_stop_ends_the_wait_for_the_next_try(api: str, store: Path, settings: PrefectConfig) -> None:
    stop = Event()

    class Stopping(Recorded):
        def warn(self, message: str) -> None:
            super().warn(message)
            stop.set()

    options = {"store_away_once": TaskOptions(retry_delay_seconds=(86400.0,))}
    stage, listener = planned(STORE_AWAY_ONCE, "first", folder=store), Stopping()
    patient = settings.model_copy(update={"stages": options})
    with pytest.raises(Interrupted):
        walk(PREFECT, patient, store, [stage], stop=stop, listener=listener)
    assert [what for what, *_ in listener.told] == ["warn"]
    (run,) = task_runs_of(api, flow_run_of(api, store))
    assert (run["state_type"], run["run_count"]) == ("CANCELLED", 1)


def test_a_server_that_is_away_for_a_moment_is_asked_again(
    api: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a gateway that restarts: the first request of each kind about flow runs fails."""
    failed: set[tuple[str, str]] = set()
    sends = httpx.Client.send

    def fails_once(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        asked = request.method, request.url.path.rpartition("/")[2]
        if "/flow_runs/" in request.url.path and asked not in failed:
            failed.add(asked)
            return httpx.Response(502, headers={"Retry-After": "0.01"}, request=request)
        return sends(client, request, **options)

    monkeypatch.setattr(httpx.Client, "send", fails_once)
    listener = Recorded()
    assert len(walk(PREFECT, THREADS, store, chain(2), listener=listener)) == 2
    monkeypatch.undo()
    assert ("POST", "set_state") in failed
    assert not [each for each in listener.told if each[0] == "warn"]
    flow_run = flow_run_of(api, store)
    assert flow_run["state_type"] == "COMPLETED"
    assert [run["state_type"] for run in task_runs_of(api, flow_run)] == ["COMPLETED", "COMPLETED"]


@pytest.mark.parametrize("delays", [(-5.0,), (1e300,), (float("nan"),), (1.0,) * 51])
def test_waits_that_nobody_can_mean_are_refused(delays: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError, match="retry_delay_seconds"):
        TaskOptions(retry_delay_seconds=delays)


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
        path = f"flow_runs/{flow_run_of(api, store)['id']}/set_state"
        post(api, path, state={"type": "CANCELLING"}, force=True)

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
    post(api, "v2/concurrency_limits/", name="tag:alone", limit=1)
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
        found = post(api, "events/filter", **asked).json()["events"]
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


def test_a_run_that_is_stopped_while_prefect_starts_has_no_record_to_miss(
    submissions: Submissions, listener: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StageTasks, "_run", lambda *_: None)  # Prefect is still imported.
    submissions.call.stop.set()
    with (
        pytest.raises(Interrupted),
        StageTasks(submissions.call, submissions.pool, {}, tmp_path / "prefect.log") as tasks,
    ):
        tasks.prepare()
    assert listener.told == []


def test_options_of_an_unknown_stage_are_refused(store: Path) -> None:
    settings = PrefectConfig(stages={"wrote": TaskOptions(timeout_seconds=1)})
    with pytest.raises(ConfigError, match=r"runner\.stages: wrote: no such stage; the run has write"):
        walk(PREFECT, settings, store, chain(1))
