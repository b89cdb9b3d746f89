from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from command_line.schedule import _to_begin, parse_interval
from storage.errors import InputError
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL, FinishedRun, invoke


@pytest.fixture
def free_port() -> str:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.fixture(autouse=True)
def no_configured_api(tmp_path: Path) -> Iterator[None]:
    """As on a machine where nobody set PREFECT_API_URL, and with another home than the developer's."""
    with temporary_settings({PREFECT_HOME: tmp_path / "prefect"}, restore_defaults={PREFECT_API_URL}):
        yield


def test_a_distance_in_time() -> None:
    assert parse_interval("90s") == timedelta(seconds=90)
    assert parse_interval("1d") == timedelta(hours=24)


@pytest.mark.parametrize("text", ["36501d", "9999999d"])
def test_a_distance_that_no_calendar_has_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--every '{text}' is too long; allowed are up to 36500d"):
        parse_interval(text)


@given(text=st.text(max_size=8).filter(lambda text: re.fullmatch("[1-9][0-9]*[smhd]", text) is None))
def test_any_other_text_is_no_distance_in_time(text: str) -> None:
    with pytest.raises(InputError, match="90s, 20m, 6h or 1d"):
        parse_interval(text)


@pytest.mark.parametrize("words", [[], ["--once", "--every", "1h"], ["--cron", "0 3 * * *", "--every", "1h"]])
def test_exactly_one_time_is_asked_for(finished: FinishedRun, words: list[str]) -> None:
    result = invoke("schedule", "small", "--store", finished.store, *words)
    assert result.status == 2
    assert "say when, with one of --cron '0 3 * * *', --every 6h and --once" in result.errors


def test_options_of_another_flow_are_refused(finished: FinishedRun) -> None:
    result = invoke("schedule", "small", "--store", finished.store, "--once", "--iterations", "3")
    assert result.status == 2
    assert "--iterations is for --flow train; --flow iteration does not take it" in result.errors


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--every", "6h", "--timezone", "Europe/Zurich"], "--timezone is for --cron"),
        (["--once", "--timezone", "Europe/Zurich"], "--timezone is for --cron"),
        (["--once", "--flow", "maintain", "--concurrency-limit", "gpu"], "--flow maintain needs none"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    finished: FinishedRun, words: list[str], reason: str
) -> None:
    result = invoke("schedule", "small", "--store", finished.store, *words)
    assert result.status == 2
    assert reason in result.errors


def test_an_age_that_no_calendar_has_is_refused(finished: FinishedRun) -> None:
    words = ("--once", "--flow", "maintain", "--garbage-days", "1e9")
    result = invoke("schedule", "small", "--store", finished.store, *words)
    assert result.status == 2
    assert "less than or equal to 36500" in result.errors


def test_a_run_that_is_not_there_is_named(finished: FinishedRun) -> None:
    result = invoke("schedule", "smal", "--store", finished.store, "--every", "6h")
    assert result.status == 2
    assert f"no run smal in store {finished.store}. Did you mean small?" in result.errors


def test_a_run_that_is_there_with_other_settings_is_not_begun_again(
    finished: FinishedRun, tmp_path: Path
) -> None:
    config = tmp_path / "other.yaml"
    config.write_text(SMALL + "seed: 3\n")
    result = invoke("schedule", "small", "--store", finished.store, "--once", "--config", config)
    assert result.status == 2
    assert "run small exists with other settings: seed: 0 -> 3" in result.errors


def test_a_configuration_changes_what_may_change_in_a_run_that_is_there(tmp_path: Path) -> None:
    store, config = str(tmp_path / "store"), tmp_path / "small.yaml"
    for rule in ("1", "null"):
        config.write_text(SMALL + f"retention: {{checkpoints: {rule}}}\n")
        begin = _to_begin("small", store, config)
        assert begin is not None
        begin()
        run = RunStore(store).open("small")
        run.record(None, "prepare_tasks", "a", kind="tasks", reused=False, seconds=1.0)
    assert run.config["retention"]["checkpoints"] is None


@pytest.mark.parametrize("words", [["list"], ["pause", "small"], ["small", "--every", "6h"]])
def test_without_a_server_it_is_said_how_to_start_one(
    finished: FinishedRun, free_port: str, words: list[str]
) -> None:
    place = ["--store", str(finished.store)] if "--every" in words else []
    result = invoke("schedule", *words, *place, "--port", free_port)
    assert result.status == 2
    assert result.errors == (
        f"error: no Prefect server answers at http://127.0.0.1:{free_port}/api. Start one with "
        "`erl-pipeline serve`, or set PREFECT_API_URL to the one that you have.\n"
    )


def test_without_a_server_no_run_is_begun(tmp_path: Path, free_port: str) -> None:
    config, store = tmp_path / "small.yaml", tmp_path / "store"
    config.write_text(SMALL)
    result = invoke(
        "schedule", "new", "--store", store, "--every", "6h", "--config", config, "--port", free_port
    )
    assert (result.status, RunStore(str(store)).list()) == (2, [])


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = invoke("serve", "--port", port)
    assert result.status == 2
    assert f"no server can listen on 127.0.0.1, port {port} (Address already in use)" in result.errors
