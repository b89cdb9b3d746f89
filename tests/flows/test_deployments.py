"""Deployments on a real server: what is made, replaced, listed, paused and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient

from flows.deployed import deployed
from flows.deployments import (
    connected,
    cron,
    deploy,
    every,
    find,
    in_words,
    is_skip,
    of_run,
    pause,
    remove,
    resume,
    run_once,
)
from flows.local_server import OrchestratorError
from storage.errors import InputError
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL, invoke

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(api: str) -> Iterator[SyncPrefectClient]:
    with connected(api) as client:
        yield client


def test_a_deployment_is_made_replaced_paused_and_removed(client: SyncPrefectClient, tmp_path: Path) -> None:
    daily = cron("0 3 * * *", "Europe/Zurich")
    assert not deploy(client, "iteration", "one", "/store", daily, "skip", {}, tmp_path)
    (row,) = [row for row in deployed(client) if row.run == "one"]
    assert (row.flow, row.schedule, row.overlap, row.paused) == (
        "iteration",
        "cron 0 3 * * * Europe/Zurich",
        "skip",
        False,
    )
    often = every(timedelta(hours=6))
    with pytest.raises(InputError, match=r"scheduled already, cron 0 3 .* Europe/Zurich; --replace puts"):
        deploy(client, "iteration", "one", "/store", often, "wait", {}, tmp_path)
    assert deploy(client, "iteration", "one", "/store", often, "wait", {}, tmp_path, replace=True)
    (row,) = [row for row in deployed(client) if row.run == "one"]
    assert (row.schedule, row.overlap) == ("every 6h", "wait")

    deploy(client, "train", "one", "/store", None, "skip", {"iterations": 7}, tmp_path)
    assert of_run(client, "one") == ["train", "iteration"]
    pause(client, "iteration", "one")
    deployment = find(client, "one", "iteration")
    assert deployment is not None
    assert deployment.paused
    resume(client, "iteration", "one")
    (schedule,) = deployment.schedules
    client.update_deployment_schedule(deployment.id, schedule.id, active=False)  # by Prefect's own command
    (row,) = [row for row in deployed(client) if (row.run, row.flow) == ("one", "iteration")]
    assert row.paused
    resume(client, "iteration", "one")
    (row,) = [row for row in deployed(client) if (row.run, row.flow) == ("one", "iteration")]
    assert not row.paused
    remove(client, "iteration", "one")
    assert of_run(client, "one") == ["train"]


def test_a_run_is_not_begun_for_a_schedule_that_is_refused(
    client: SyncPrefectClient, api: str, tmp_path: Path
) -> None:
    """The deployment exists; its run, in another folder, does not."""
    store, config = tmp_path / "store", tmp_path / "small.yaml"
    config.write_text(SMALL)
    deploy(client, "iteration", "five", str(store), every(timedelta(hours=6)), "skip", {}, tmp_path)
    words = ("schedule", "five", "--store", store, "--every", "1h", "--config", config)
    refused = invoke(*words)
    assert (refused.status, RunStore(str(store)).list()) == (2, [])
    assert "flow iteration of run five is scheduled already, every 6h" in refused.errors
    replaced = invoke(*words, "--replace")
    assert (replaced.status, RunStore(str(store)).list()) == (0, ["five"])


@pytest.mark.parametrize("cron", ["0 2 30 2 *", "every day"])
def test_no_run_is_begun_for_times_that_are_refused(
    client: SyncPrefectClient, tmp_path: Path, cron: str
) -> None:
    store, config = tmp_path / "store", tmp_path / "small.yaml"
    config.write_text(SMALL)
    refused = invoke("schedule", "six", "--store", store, "--config", config, "--cron", cron)
    assert (refused.status, RunStore(str(store)).list()) == (2, [])
    assert f"--cron '{cron}'" in refused.errors
    assert find(client, "six", "iteration") is None


def test_once_changes_only_what_is_given(client: SyncPrefectClient, tmp_path: Path) -> None:
    store, config = tmp_path / "store", tmp_path / "small.yaml"
    config.write_text(SMALL)
    words = ("schedule", "seven", "--store", store, "--flow", "train", "--json")
    wanted = ("--every", "6h", "--overlap", "wait", "--concurrency-limit", "none")
    assert invoke(*words, "--config", config, *wanted).json["replaced"] is False

    def once(*more: str) -> dict[str, Any]:
        made = invoke(*words, "--once", *more).json
        assert (made["schedule"], made["overlap"], made["replaced"]) == ("every 6h", "wait", False)
        parameters = client.read_flow_run(made["flow_run"]).parameters
        return {name: parameters[name] for name in parameters if name not in ("run", "store")}

    assert once() == {"overlap": "wait", "concurrency_limit": None}
    assert once("--overlap", "wait", "--concurrency-limit", "other", "--iterations", "3") == {
        "overlap": "wait",
        "concurrency_limit": "other",
        "iterations": 3,
    }
    refused = invoke(*words, "--once", "--overlap", "skip")
    assert refused.status == 2
    assert "with --overlap wait; leave out --overlap, or schedule it anew with --replace" in refused.errors


def test_a_flow_run_by_hand_takes_other_arguments(client: SyncPrefectClient, tmp_path: Path) -> None:
    deploy(client, "train", "two", "/store", None, "skip", {"iterations": 7}, tmp_path)
    made = run_once(client, "train", "two", "/store", {"iterations": 9})
    assert made.parameters == {"run": "two", "store": "/store", "iterations": 9, "overlap": "skip"}


def test_runs_of_one_name_in_two_stores_are_not_confused(client: SyncPrefectClient, tmp_path: Path) -> None:
    deploy(client, "maintain", "three", "/store", None, "skip", {}, tmp_path)
    with pytest.raises(InputError, match=r"in another store, /store; remove that with: erl-pipeline"):
        deploy(client, "maintain", "three", "/other", None, "skip", {}, tmp_path)
    with pytest.raises(InputError, match="in another store"):
        run_once(client, "maintain", "three", "/other", {})


def test_what_is_not_scheduled_is_named(client: SyncPrefectClient) -> None:
    with pytest.raises(InputError, match="flow train is not scheduled for run none"):
        pause(client, "train", "none")
    with pytest.raises(InputError, match="'every day' in time zone UTC cannot be understood"):
        cron("every day", "UTC")
    with pytest.raises(InputError, match="'0 0 31 4 \\*' is never due: the calendar has no such day"):
        cron("0 0 31 4 *", "UTC")
    assert cron("0 0 29 2 *", "UTC").cron == "0 0 29 2 *"


def test_no_server_is_an_error_that_says_how_to_start_one() -> None:
    with (
        pytest.raises(OrchestratorError, match="Start one with `erl-pipeline serve`"),
        connected("http://127.0.0.1:9/api"),
    ):
        pass


def test_a_server_that_fails_is_an_error_that_says_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its SQLite database is locked, Prefect's server answers with 503."""
    monkeypatch.setattr("flows.deployments.answers", lambda url: True)
    api = "http://127.0.0.1:9/api"
    busy = httpx.Response(503, request=httpx.Request("POST", f"{api}/deployments/"))
    with (
        pytest.raises(OrchestratorError, match="failed with status 503"),
        connected(api),
    ):
        busy.raise_for_status()
    no_key = httpx.Response(401, request=busy.request)
    with (
        pytest.raises(OrchestratorError, match=r"refuses this user .* PREFECT_API_AUTH_STRING"),
        connected(api),
    ):
        no_key.raise_for_status()
    refused = httpx.Response(422, request=busy.request)
    with pytest.raises(httpx.HTTPStatusError), connected(api):
        refused.raise_for_status()


def test_prefect_deploys_what_infra_names(client: SyncPrefectClient, api: str, tmp_path: Path) -> None:
    deploy(client, "train", "makes-the-work-pool", "/store", None, "skip", {}, tmp_path)
    prefect = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    result = subprocess.run(
        [*prefect, "--prefect-file", str(ROOT / "infra" / "prefect.yaml")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": api},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = {row.flow: row for row in deployed(client) if row.run == "frozen-lake"}
    found = {flow: (row.schedule, row.overlap, row.paused) for flow, row in rows.items()}
    assert found == {
        "train": (None, "skip", False),
        "iteration": ("cron 0 2 * * * UTC", "skip", True),
        "evaluate": ("cron 0 6 * * 1 UTC", "wait", True),
        "maintain": ("cron 0 5 * * * UTC", "skip", True),
    }
    assert {row.store for row in rows.values()} == {"s3://erl-pipeline/store"}


@pytest.mark.parametrize(
    ("state", "message", "skip", "words"),
    [
        (None, None, False, ""),
        ("Completed", "Committed through iteration 3", False, "completed: Committed through iteration 3"),
        ("Running", None, False, "running"),
        (
            "Cancelled",
            "Deployment concurrency limit reached.",
            True,
            "skipped: the one before it was still at work",
        ),
        ("Cancelled", "Asked to stop", False, "cancelled: Asked to stop"),
        (
            "Skipped",
            "Skipped: run one is being worked on by process 3 on host.",
            True,
            "skipped: run one is being worked on by process 3 on host.",
        ),
    ],
)
def test_how_a_flow_run_ended_is_said_in_words(
    state: str | None, message: str | None, skip: bool, words: str
) -> None:
    assert (is_skip(state, message), in_words(state, message)) == (skip, words)
