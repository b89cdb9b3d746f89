"""The Prefect API that a run reports to: the user's own, or a server of this process that ends with it.

Prefect would start a server by itself, but that one outlives a killed process and then holds its
terminal and pipes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect.settings import get_current_settings

from storage.errors import PipelineError

_SERVER_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
}


class OrchestratorError(PipelineError):
    """Prefect's API cannot be reached or started."""


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
        OrchestratorError: the API did not answer in time.
    """
    configured = get_current_settings().api.url
    if configured is not None:
        _wait(configured, time.monotonic() + min(deadline, 10.0), lambda: None, "check PREFECT_API_URL")
        yield configured
        return
    with socket.create_server(("127.0.0.1", 0)) as listener, log_file.open("ab") as log:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server_process", str(listener.fileno())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            env={**os.environ, **_SERVER_SETTINGS},
            start_new_session=True,  # Ctrl-C is for the training; the server is needed until that has ended
        )
    try:
        _wait(url, time.monotonic() + deadline, process.poll, f"see {log_file}")
        yield url
    finally:
        _stop(process)


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
