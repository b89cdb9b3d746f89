"""Which server is used, and what prevents one from starting. `conftest.py` tests that it ends, and
`test_runner.py` that it ends when its process is killed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows.local_server import OrchestratorError, answers, prefect_api


def test_a_configured_api_is_used_and_not_stopped(api: str, tmp_path: Path) -> None:
    with prefect_api(tmp_path / "server.log") as url:
        assert url == api
    assert answers(api)
    assert not (tmp_path / "server.log").exists()


def test_a_configured_api_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
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
