"""A run whose Prefect server is killed: it goes on, and says what Prefect missed."""

from __future__ import annotations

import os
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

from erl_pipeline.plan.stage import StageOutcome
from flows import stage_tasks, training_flow
from flows.local_server import answers
from flows.runner import PREFECT, PrefectConfig
from flows.submissions import TaskOptions
from storage.artifacts.store import ArtifactStore
from storage.errors import Interrupted
from tests.flows.records import ask, flow_run_of, post
from tests.flows.small_plans import MEET, WRITE, Recorded, chain, planned, walk
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
THREADS = PrefectConfig()
TWO_PROCESSES = PrefectConfig(task_runner="processes", workers=2)


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


def test_a_run_whose_flow_run_somebody_deletes_ends_and_says_so(
    store: Path, owned: tuple[str, subprocess.Popen[str]]
) -> None:
    """As where somebody tidies up Prefect's page. The server is one of its own: afterwards it may write no
    task runs of other flow runs any more."""
    api, _ = owned

    def delete() -> None:
        flow_run = flow_run_of(api, store)["id"]
        httpx.delete(f"{api}/flow_runs/{flow_run}", timeout=90.0).raise_for_status()

    listener = Kills(delete)
    assert len(walk(PREFECT, THREADS, store, chain(3), listener=listener)) == 3
    gone = "Prefect no longer has this flow run: somebody has deleted it. "
    assert listener.warnings[0] == f"{gone}The run continues without it"
    assert listener.warnings[1].startswith(
        f"{gone}Its record of this flow run and of the 3 stages that were "
    )


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


def test_a_process_that_first_begins_after_its_server_was_lost_computes_its_stage(
    store: Path, owned: tuple[str, subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The second process has no stage before the first one is done; then two stages wait for each other."""
    _, owner = owned

    def kill() -> None:
        owner.kill()
        owner.wait()

    first = planned(WRITE, "0")
    meeting = [planned(MEET, name, {"before": first}, folder=tmp_path) for name in ("first", "second")]
    listener = Kills(kill)
    assert len(walk(PREFECT, TWO_PROCESSES, store, [first, *meeting], listener=listener)) == 3


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


@pytest.mark.parametrize("settings", [THREADS, TWO_PROCESSES], ids=["threads", "processes"])
def test_a_stage_that_waits_for_a_slot_of_a_lost_server_does_not_wait_for_ever(
    settings: PrefectConfig,
    store: Path,
    tmp_path: Path,
    owned: tuple[str, subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The only slot is taken; the stage goes on without. Prefect's client would try again for a minute."""
    monkeypatch.setattr(stage_tasks, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(training_flow, "_TRIES_FOR_SLOTS", 1)
    url, owner = owned
    tag = f"taken-{tmp_path.name}"  # The servers of these tests have one database.
    post(url, "v2/concurrency_limits/", name=f"tag:{tag}", limit=1)
    lease = {"names": [f"tag:{tag}"], "slots": 1, "mode": "concurrency", "lease_duration": 600}
    post(url, "v2/concurrency_limits/increment-with-lease", **lease)

    def asking() -> list[dict[str, Any]]:
        return [each for each in ask(url, "task_runs") if tag in each["tags"]]

    def kill() -> None:
        try:
            wait_for("the task run, which asks for a slot", asking)
        finally:  # Else the stage would wait for the slot without end.
            owner.kill()
            owner.wait()

    listener = KillsAtStart(kill)
    tagged = settings.model_copy(update={"stages": {"write": TaskOptions(tags=(tag,))}})
    (outcome,) = walk(PREFECT, tagged, store, chain(1), listener=listener)
    assert outcome.counters["names"] == 1
    first, *_, last = (str(each[1]) for each in listener.told if each[0] == "warn")
    assert first.startswith("write 0 of iteration 1: ")
    assert first.endswith("the stage is computed again, without the limits of its tags.")
    assert last.startswith(f"Prefect's API at {url} does not answer. ")
