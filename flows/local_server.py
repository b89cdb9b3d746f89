"""The Prefect API that a run reports to: the user's own, or a server of this process that ends with it.

Prefect would start a server by itself, but its server outlives a killed process and then keeps the process's
terminal and pipes open.
"""

import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    get_current_settings,
    temporary_settings,
)

from erl_pipeline.network import interface_of, reason
from storage.errors import PipelineError

_SERVER_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_API_URL": "",  # The user's may name this server.
    "PREFECT_SERVER_API_BASE_PATH": "",  # The user's is for a server of theirs.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # By default each state of a task run is written to the database separately.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    # Whole seconds: Prefect drops fractions, and with 0 its server would keep a core busy.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    # By default 20 events, those of four stages; they are written every five seconds anyway.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
}

_SCHEDULING_SETTINGS = {
    # Automations act only on a server that stays.
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "true",
    # Slots of concurrency limits are leased; a restarted server must know the leases that it gave.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
    # How soon the server sees a new schedule.
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "2",
}


_EVERYWHERE = "0.0.0.0"
_LOOPBACK = ("127.0.0.1", "localhost")
_HEALTH_SECONDS = 5.0
_ASK_SECONDS = 15.0
_MOST_UNANSWERED = 8
"""Two minutes: beside heavy work, a server that waits for its database can be silent for one."""
_CONFIGURED_SECONDS = 10.0
_BUSY_SECONDS = 60.0
"""How much longer a server may take that accepts connections: beside heavy work it is slow to answer."""
_CHECK_URL = "check PREFECT_API_URL, or train with --no-prefect"


class OrchestratorError(PipelineError):
    """Prefect's API cannot be started, cannot be reached or went away."""


Gone = Callable[[], str]
"""Says how an API went away, with what to do; empty while it is there."""


class WentAway(OrchestratorError):
    """Prefect's API answered, or was being started, and does not answer any more."""


def refusal(url: str, error: httpx.HTTPError) -> OrchestratorError | None:
    """What to tell a user whom a Prefect API refuses; its `/health` refuses nobody. None for other errors."""
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
    if status not in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return None
    return OrchestratorError(
        f"Prefect's API at {url} refuses this user (status {status}): set PREFECT_API_AUTH_STRING, or for "
        "Prefect Cloud PREFECT_API_KEY"
    )


def configured_api() -> str:
    """The value of `PREFECT_API_URL` (environment or profile), without a slash at its end; empty if there is
    none. From then on this process, and those that it starts, reach loopback without a proxy: a server of
    ours, or a user's own, is behind none."""
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    if direct != "*":
        named = dict.fromkeys([*filter(None, direct.split(",")), *_LOOPBACK])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(named)
    return (get_current_settings().api.url or "").rstrip("/")


@contextmanager
def prefect_api(log_file: Path, deadline: float = 120.0) -> Iterator[str]:
    """The URL of a Prefect API that answers.

    If `PREFECT_API_URL` is set (environment or profile), that API is used. Otherwise a server on a free
    port of 127.0.0.1 runs inside this context. It uses the user's own Prefect database, so that a later
    `prefect server start` shows the runs.

    Args:
        log_file: gets the output of the server.
        deadline: seconds until the API must answer; the first start creates the database.

    Raises:
        WentAway: the server was killed before it answered.
        OrchestratorError: the API did not answer in time, or Prefect's folder cannot be written.
    """
    configured = configured_api()
    if configured:
        _wait(configured, min(deadline, _CONFIGURED_SECONDS), lambda: None, _CHECK_URL)
        yield configured
        return
    hint = f"see {log_file}, or train with --no-prefect"
    with _server("127.0.0.1", 0, [], _SERVER_SETTINGS, log_file, deadline, hint) as (url, _):
        yield url


@contextmanager
def scheduling_server(
    host: str, port: int, log_file: Path, deadline: float = 120.0
) -> Iterator[tuple[str, Gone]]:
    """Run a server that also schedules and serves Prefect's page, inside this context; the URL of its API,
    and whether the server is gone.

    Like the server of a training run it uses the user's own Prefect database, and cannot outlive this
    process. Its page is at the URL without the last part, `/api`.

    Args:
        host, port: where it listens; port 0 takes a free port.

    Raises:
        OrchestratorError: the port is taken, the server did not answer in time, or Prefect's folder
            cannot be written.
    """
    settings = {**_SERVER_SETTINGS, **_SCHEDULING_SETTINGS}
    hint = f"see {log_file}"
    with _server(host, port, ["--schedule"], settings, log_file, deadline, hint) as (url, process):
        ended = f"Prefect's server has ended; {hint}, and start `erl-pipeline serve` again"
        yield url, lambda: "" if process.poll() is None else ended


@contextmanager
def serving_api(
    host: str, port: int, log_file: Path, deadline: float = 120.0
) -> Iterator[tuple[str, bool, Gone]]:
    """The URL of the API that a worker works for, whether its server was started here, and if it is gone.

    If `PREFECT_API_URL` is set, that API is used, unless it names this very host and port and nothing answers
    there; then, as without it, the server runs inside this context (see `scheduling_server`).

    Raises OrchestratorError as `scheduling_server`, and when the API that is set does not answer.
    """
    configured = configured_api()
    if not configured or (_is_at(configured, host, port) and not answers(configured)):
        with scheduling_server(host, port, log_file, deadline) as (url, gone):
            yield url, True, gone
        return
    hint = (
        "PREFECT_API_URL names it: start that server, or unset the variable, and `erl-pipeline serve` starts "
        "one itself, at the --port that you give"
    )
    _wait(configured, min(deadline, _CONFIGURED_SECONDS), lambda: None, hint)
    yield configured, False, _unanswered(configured)


def _unanswered(url: str) -> Gone:
    """Asks now and then; the API is gone after `_MOST_UNANSWERED` questions in a row without an answer."""
    failed, due = 0, 0.0

    def gone() -> str:
        nonlocal failed, due
        if time.monotonic() >= due:
            failed = 0 if answers(url) else failed + 1
            due = time.monotonic() + _ASK_SECONDS
        if failed < _MOST_UNANSWERED:
            return ""
        return f"Prefect's server at {url} does not answer any more; start it, and then `erl-pipeline serve`"

    return gone


def for_others(host: str, port: int) -> str:
    """The address of a server that listens on this host, as other machines write it: 0.0.0.0 stands for all
    addresses of this one, and is none."""
    return f"http://{socket.gethostname() if host in (_EVERYWHERE, '::') else host}:{port}"


def _is_at(url: str, host: str, port: int) -> bool:
    """Whether a URL names this host and port of this machine."""
    named = urlsplit(url)
    if named.port != port or named.hostname is None:
        return False
    try:
        there = socket.gethostbyname(named.hostname)
        if host == _EVERYWHERE:
            return bool(interface_of(there))
        return there == socket.gethostbyname(host)
    except OSError:  # The name is not known, or the address is another machine's.
        return False


def answers(url: str) -> bool:
    """Whether a Prefect API answers at this URL."""
    with _asking(url) as client:
        return client.api_healthcheck() is None


@contextmanager
def _asking(url: str) -> Iterator[SyncPrefectClient]:
    """A client, with the headers and certificates that are set for Prefect's, that gives up soon."""
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings={"timeout": _HEALTH_SECONDS}) as client,
    ):
        yield client


@contextmanager
def _server(
    host: str,
    port: int,
    arguments: list[str],
    settings: dict[str, str],
    log_file: Path,
    deadline: float,
    hint: str,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        with _one_start_at_a_time(get_current_settings().home):
            url, process = _start(host, port, arguments, settings, log_file)
            stack.callback(_stop, process)
            _wait(url, deadline, process.poll, hint)
        yield url, process


@contextmanager
def _one_start_at_a_time(home: Path) -> Iterator[None]:
    """Let one server start at a time: two on a new database would both create its tables; one would fail."""
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


def _start(
    host: str, port: int, arguments: list[str], settings: dict[str, str], log_file: Path
) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a server; the URL at which it will answer, and its process."""
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise OrchestratorError(
            f"no server can listen on {host}, port {port} ({reason(error)}); choose another --port, or set "
            "PREFECT_API_URL to a Prefect server that runs already"
        ) from error
    with listener, log_file.open("ab") as log:
        bound = listener.getsockname()[1]
        place = {"PREFECT_SERVER_API_HOST": host, "PREFECT_SERVER_API_PORT": str(bound)}
        is_set = "api_url" in get_current_settings().server.ui.model_fields_set
        if host == _EVERYWHERE and not is_set:  # Else Prefect's page would have a browser ask 0.0.0.0.
            place["PREFECT_UI_API_URL"] = f"{for_others(host, bound)}/api"
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server_process", str(listener.fileno()), *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            env={**os.environ, **settings, **place},
            start_new_session=True,  # Ctrl-C must not reach it: training needs the server until its own end
        )
        reachable = "127.0.0.1" if host == _EVERYWHERE else host
        return f"http://{reachable}:{bound}/api", process


def _wait(url: str, seconds: float, ended: Callable[[], int | None], hint: str) -> None:
    began = time.monotonic()
    with _asking(url) as client:
        while (reason := client.api_healthcheck()) is not None:
            status = ended()
            if status is not None and status < 0:
                killed = signal.Signals(-status).name
                raise WentAway(f"Prefect's server was killed while it started ({killed})")
            is_busy = isinstance(reason, httpx.TimeoutException)
            longest = seconds + (_BUSY_SECONDS if is_busy else 0.0)
            if status is not None or time.monotonic() - began > longest:
                again = ". If the machine is busy, run the same command again" if is_busy else ""
                raise OrchestratorError(f"Prefect's API at {url} does not answer ({reason}); {hint}{again}")
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


_LOGGERS = ("prefect", "EventsWorker", "APILogWorker")
"""Prefect's loggers: its services have loggers with the names of their classes."""


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Send Prefect's log to a file inside this context, so that it does not break the progress display."""
    console = [*logging.getLogger().handlers]  # this list may be another one at the end
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in _LOGGERS

    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    for each in console:
        each.addFilter(from_elsewhere)
    try:
        yield
    finally:
        for each in console:
            each.removeFilter(from_elsewhere)
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)
        handler.close()
