"""The Prefect API that a run reports to: the user's own, or a server of this process that ends with it.

Prefect would start a server by itself, but that one outlives a killed process and then holds its
terminal and pipes.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prefect.settings import get_current_settings

from storage.errors import PipelineError

_SERVER_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}


class OrchestratorError(PipelineError):
    """Prefect's API cannot be started, cannot be reached or went away."""


@contextmanager
def prefect_api(log_file: Path, deadline: float = 120.0) -> Iterator[str]:
    """The URL of a Prefect API that answers.

    With `PREFECT_API_URL` set (environment or profile) that one is used. Otherwise a server on a free
    port of 127.0.0.1 runs inside this context, on the user's own Prefect database, so that a later
    `prefect server start` shows the runs.

    Args:
        log_file: gets what the server prints.
        deadline: seconds until the API must answer; the first start makes the database.

    Raises:
        OrchestratorError: the API did not answer in time, or Prefect's folder cannot be written.
    """
    configured = get_current_settings().api.url
    if configured:
        _wait(configured, time.monotonic() + min(deadline, 10.0), lambda: None, "check PREFECT_API_URL")
        yield configured
        return
    with ExitStack() as stack:
        with _one_start_at_a_time(get_current_settings().home):
            url, process = _start(log_file)
            stack.callback(_stop, process)
            _wait(url, time.monotonic() + deadline, process.poll, f"see {log_file}")
        yield url


@contextmanager
def _one_start_at_a_time(home: Path) -> Iterator[None]:
    """Two servers that start at once on a new database would both make its tables, and one would fail."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "erl-pipeline-start.lock").open("w")
    except OSError as error:
        raise OrchestratorError(
            f"Prefect's folder {home} cannot be written ({error.strerror}); set PREFECT_HOME to another, "
            "or train with --no-prefect"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start(log_file: Path) -> tuple[str, subprocess.Popen[bytes]]:
    """The URL that a new server will answer at, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as listener, log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server_process", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            env={**os.environ, **_SERVER_SETTINGS},
            start_new_session=True,  # Ctrl-C is for the training; the server is needed until that has ended
        )
        return f"http://127.0.0.1:{listener.getsockname()[1]}/api", process


def _wait(url: str, deadline: float, ended: Callable[[], int | None], hint: str) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5.0):
                return
        except OSError as error:
            reason = error
        if ended() is not None or time.monotonic() > deadline:
            raise OrchestratorError(
                f"Prefect's API at {url} does not answer ({reason}); {hint}, or train with --no-prefect"
            )
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()
