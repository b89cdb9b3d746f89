"""Which server is used, and what prevents one from starting. `conftest.py` tests that it ends, and
`test_runner.py` that it ends when its process is killed."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    PREFECT_HOME,
    PREFECT_UI_API_URL,
    temporary_settings,
)

from flows import local_server
from flows.local_server import (
    OrchestratorError,
    answers,
    configured_api,
    for_others,
    prefect_api,
    scheduling_server,
    serving_api,
)
from tests.waiting import wait_for


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_configured_api_is_used_and_not_stopped(api: str, tmp_path: Path) -> None:
    with prefect_api(tmp_path / "server.log") as url:
        assert url == api
    assert answers(api)
    assert not (tmp_path / "server.log").exists()


def test_a_configured_api_is_asked_as_prefect_asks_it(api: str, tmp_path: Path) -> None:
    """With a slash at its end, and behind a gate that lets only a header of the user's pass."""

    class Gate(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            passes = self.headers.get("x-token") == "s"
            status = httpx.get(api + self.path.removeprefix("/api")).status_code if passes else 403
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    gate = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    Thread(target=gate.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{gate.server_port}/api"
    with temporary_settings({PREFECT_API_URL: f"{url}/", PREFECT_CLIENT_CUSTOM_HEADERS: {"x-token": "s"}}):
        with prefect_api(tmp_path / "server.log") as used:
            assert used == url
        assert not answers(f"{url}/elsewhere")
    assert not answers(url)
    gate.shutdown()
    gate.server_close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "here"}, "here,127.0.0.1,localhost"),
        ({"no_proxy": "localhost,there", "NO_PROXY": "here"}, "localhost,there,127.0.0.1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_loopback_is_reached_without_a_proxy(
    api: str, monkeypatch: pytest.MonkeyPatch, before: dict[str, str], after: str
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**before, "http_proxy": f"http://127.0.0.1:{free_port()}"}.items():
        monkeypatch.setenv(name, value)
    assert answers(api) == (after == "*")
    assert configured_api() == api
    assert os.environ["no_proxy"] == after
    assert answers(api)


def test_a_configured_api_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(OrchestratorError, match="check PREFECT_API_URL, or train with --no-prefect"),
        prefect_api(tmp_path / "server.log", deadline=0.2),
    ):
        pass


@pytest.mark.usefixtures("no_configured_api")
def test_a_home_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with (
        temporary_settings({PREFECT_HOME: tmp_path / "file" / "prefect"}),
        pytest.raises(OrchestratorError, match="set PREFECT_HOME to another, or train with --no-prefect"),
        prefect_api(tmp_path / "server.log"),
    ):
        pass


@pytest.mark.usefixtures("prefect_home", "no_configured_api")
def test_a_server_that_cannot_start_is_an_error_that_names_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "sqlite+aiosqlite:////nowhere/at/all.db")
    log = tmp_path / "server.log"
    with pytest.raises(OrchestratorError, match=str(log)), prefect_api(log):
        pass
    assert "unable to open database file" in log.read_text()


def test_a_busy_server_has_more_time_than_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What listens and says nothing is slow; after the time for it the message says to try again."""
    monkeypatch.setattr(local_server, "_HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(local_server, "_CONFIGURED_SECONDS", 0.0)
    monkeypatch.setattr(local_server, "_BUSY_SECONDS", 0.3)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listens:
        url = f"http://127.0.0.1:{listens.getsockname()[1]}/api"
        with (
            temporary_settings({PREFECT_API_URL: url}),
            pytest.raises(OrchestratorError, match=r"machine is busy, run the same command again$"),
            prefect_api(tmp_path / "server.log"),
        ):
            pass
    assert time.monotonic() - began > 0.3
    with (
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}),
        pytest.raises(OrchestratorError, match=r"or train with --no-prefect$"),
        prefect_api(tmp_path / "server.log"),
    ):
        pass


@pytest.mark.usefixtures("prefect_home")
def test_serve_starts_its_server_where_the_configured_address_is_its_own(tmp_path: Path) -> None:
    """As in a shell in which the address of the server that ran before is still exported."""
    port, before = free_port(), psutil.Process().children()
    with (
        temporary_settings({PREFECT_API_URL: f"http://localhost:{port}/api"}),
        serving_api("127.0.0.1", port, tmp_path / "server.log") as (url, started, gone),
    ):
        assert (url, started, gone()) == (f"http://127.0.0.1:{port}/api", True, "")
        assert answers(url)
        begun = (each for each in psutil.Process().children() if each not in before)
        (server,) = (each for each in begun if "flows.server_process" in each.cmdline())
        server.kill()
        wait_for("its end", gone)
        assert gone().startswith(f"Prefect's server has ended; see {tmp_path / 'server.log'}")
    assert not answers(url)


def test_an_address_for_other_machines_names_this_one() -> None:
    name = socket.gethostname()
    assert for_others("0.0.0.0", 4200) == for_others("::", 4200) == f"http://{name}:4200"
    assert for_others("127.0.0.1", 4200) == "http://127.0.0.1:4200"


@pytest.mark.usefixtures("prefect_home")
def test_the_page_of_a_server_for_other_machines_asks_this_one_and_its_automations_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the user's settings are for a server of theirs."""
    monkeypatch.setenv("PREFECT_SERVER_API_BASE_PATH", "/prefect")
    with scheduling_server("0.0.0.0", 0, tmp_path / "server.log") as (url, _):
        answer = httpx.get(f"{url.removesuffix('/api')}/ui-settings", timeout=60.0).json()
        assert answer["api_url"] == f"{for_others('0.0.0.0', urlsplit(url).port or 0)}/api"
        settings = httpx.get(f"{url}/admin/settings", timeout=60.0).json()
        assert settings["server"]["services"]["triggers"]["enabled"] is True


@pytest.mark.parametrize("chosen", [None, "https://prefect.example/api"])
def test_the_page_asks_at_the_address_that_the_user_chose_in_a_profile_too(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_UI_API_URL", raising=False)
    given: list[dict[str, str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_args, env, **_others: given.append(env))
    with temporary_settings({PREFECT_UI_API_URL: chosen} if chosen else {}):
        url, _ = local_server._start("0.0.0.0", 0, [], {}, tmp_path / "server.log")
    default = f"{for_others('0.0.0.0', urlsplit(url).port or 0)}/api"
    # A variable would have it that the profile is not asked.
    assert given[0].get("PREFECT_UI_API_URL") == (None if chosen else default)


def test_a_server_of_another_process_is_gone_when_it_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([True, *[False] * 7, True, *[False] * 8])
    monkeypatch.setattr(local_server, "_ASK_SECONDS", 0.0)
    monkeypatch.setattr(local_server, "answers", lambda _url: next(said))
    gone = local_server._unanswered("http://there:4200/api")
    assert [gone() for _ in range(16)] == [""] * 16
    assert gone().startswith("Prefect's server at http://there:4200/api does not answer any more")


def test_serve_works_for_a_configured_server_that_answers_also_at_its_own_address(
    api: str, tmp_path: Path
) -> None:
    port = int(api.removesuffix("/api").rpartition(":")[2])
    with serving_api("127.0.0.1", port, tmp_path / "server.log") as (url, started, gone):
        assert (url, started, gone()) == (api, False, "")


def test_serve_says_what_to_do_where_another_server_does_not_answer(tmp_path: Path) -> None:
    with (
        temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{free_port()}/api"}),
        pytest.raises(OrchestratorError, match="start that server, or unset the variable") as refused,
        serving_api("127.0.0.1", 0, tmp_path / "server.log", deadline=0.2),
    ):
        pass
    assert "--no-prefect" not in str(refused.value)
