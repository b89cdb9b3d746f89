"""A Prefect worker in this process: it runs the flow runs that are due, each in a process of its own, and
begins those again that were at work when it was killed."""

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path

import anyio
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_WORKER_PREFETCH_SECONDS,
    PREFECT_WORKER_QUERY_SECONDS,
    temporary_settings,
)
from prefect.states import AwaitingRetry, Cancelled, Crashed
from prefect.workers.process import ProcessWorker

from flows.deployments import WORK_POOL
from flows.local_server import Gone, OrchestratorError, log_to_file
from flows.page import AT_WORK
from flows.worker_link import LINK_VARIABLE, FlowRunLines, Message, listen_to_flow_runs

MAX_STARTS = 3
"""Most starts of a flow run that was at work each time its worker was killed."""

_NAME_LABEL = "prefect.worker.name"
_PAGE = 200
_QUERY_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_STOP_SECONDS = 60.0
"""How long flow runs may take to stop when the server is gone: it cannot be told that they have."""


def work(
    url: str,
    name: str,
    limit: int,
    handle: Callable[[Message], None],
    stop: threading.Event,
    gone: Gone,
    log_file: Path,
) -> None:
    """Run what is due until `stop` is set; then ask the flow runs at work to stop, and wait for them.

    Raises OrchestratorError when the API is gone, after a minute in which flow runs can stop.

    Flow runs end with this process, also when it is killed.

    Args:
        url: Prefect's API.
        name: distinguishes this worker from others of the same server.
        limit: most flow runs at the same time, including those that wait for a device.
        handle: called with the messages of flow runs, in threads of their own.
        gone: is asked all the time whether the API is gone.
        log_file: gets the output of the worker and its flow runs.
    """
    # No flow run is fetched before it is due: else a deployment's limit would take the flow run of the next
    # minute for one that overlaps with this minute's.
    settings = {
        PREFECT_API_URL: url,
        PREFECT_WORKER_QUERY_SECONDS: _QUERY_SECONDS,
        PREFECT_WORKER_PREFETCH_SECONDS: 0,
    }
    with (
        log_file.open("a") as log,
        redirect_stdout(log),
        redirect_stderr(log),
        log_to_file(log_file),
        listen_to_flow_runs(handle) as (lines, address),
        _in_environment(LINK_VARIABLE, address),
        temporary_settings(settings),
    ):
        asyncio.run(_work(name, limit, lines, stop, gone))


@contextmanager
def only_worker(home: Path, name: str) -> Iterator[None]:
    """Hold a lock as the only worker of this name on this machine; the kernel drops it with the process.

    Args:
        home: Prefect's folder, created if it is missing.

    Raises OrchestratorError when another worker has this name, since its flow runs would be taken for
    orphans, or when the folder cannot be written.
    """
    file_name = "".join(each if each.isalnum() else "-" for each in name)
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / f"erl-pipeline-worker-{file_name}.lock").open("w")
    except OSError as error:
        raise OrchestratorError(
            f"Prefect's folder {home} cannot be written ({error.strerror}); set PREFECT_HOME to another"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OrchestratorError(
                f"a worker {name!r} runs on this machine already; end it, or name this one with --worker"
            ) from None
        yield


def restart_orphans(client: SyncPrefectClient, pool: str, worker: str) -> list[str]:
    """Restart the flow runs that were at work when the worker of this name was killed; returns their names.

    They reuse what they had committed. A flow run that was started `MAX_STARTS` times ends as crashed; one
    that was cancelled ends as cancelled.
    """
    of_pool = WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
    at_work = FlowRunFilter.model_validate({"state": {"type": {"any_": AT_WORK}}})
    found: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_run_filter=at_work,
            work_pool_filter=of_pool,
            limit=_PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < _PAGE:
            break
    restarted = []
    for orphan in found:
        if orphan.labels.get(_NAME_LABEL) != worker:
            continue
        if orphan.state_type == StateType.CANCELLING:
            asked = "Asked to stop, and then its worker was killed; what was committed is kept"
            client.set_flow_run_state(orphan.id, Cancelled(message=asked), force=True)
            continue
        if orphan.run_count >= MAX_STARTS:
            reason = f"Its worker was killed while it ran, {orphan.run_count} times"
            client.set_flow_run_state(orphan.id, Crashed(message=reason))
            continue
        again: State[None] = AwaitingRetry(
            scheduled_time=datetime.now(UTC),
            message="Its worker was killed; it goes on from what is committed",
        )
        answer = client.set_flow_run_state(orphan.id, again)
        if answer.status == SetStateStatus.ACCEPT:
            restarted.append(orphan.name)
    return restarted


def set_device_limit(client: SyncPrefectClient, name: str, slots: int | None) -> int:
    """Make the concurrency limit from which flow runs take devices; returns its number of slots.

    If `slots` is None, an existing limit is kept, else one with a single slot is made.
    """
    wanted = slots
    if wanted is None:
        try:
            wanted = client.read_global_concurrency_limit_by_name(name).limit
        except ObjectNotFound:
            wanted = 1
    client.upsert_global_concurrency_limit_by_name(name, wanted)
    return wanted


async def _work(name: str, limit: int, lines: FlowRunLines, stop: threading.Event, gone: Gone) -> None:
    worker = ProcessWorker(WORK_POOL, name=name, limit=limit)
    working = asyncio.create_task(worker.start())
    while not stop.is_set() and not working.done():
        await asyncio.sleep(_LOOK_SECONDS)
        # In a thread, since the question to a server that hangs takes seconds.
        if lost := await asyncio.to_thread(gone):
            await _abandon(worker, working, lines)
            raise OrchestratorError(lost)
    if not working.done():
        if _has_begun(worker):
            await _drain(worker, lines)
        working.cancel()
    try:
        await working
    except asyncio.CancelledError:
        return


async def _abandon(worker: ProcessWorker, working: asyncio.Task[None], lines: FlowRunLines) -> None:
    """End a worker whose server is gone. It would go on asking for ten minutes."""
    if _has_begun(worker):
        draining = asyncio.create_task(_drain(worker, lines))
        await asyncio.wait({draining, working}, timeout=_STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
    working.cancel()
    # Whatever it raises comes from the server's end.
    await asyncio.wait({working}, timeout=_STOP_SECONDS)


def _has_begun(worker: ProcessWorker) -> bool:
    try:
        worker.limiter  # noqa: B018 - Prefect's worker has one as soon as it can begin flow runs.
    except RuntimeError:
        return False
    return True


async def _drain(worker: ProcessWorker, lines: FlowRunLines) -> None:
    """Begin no more flow runs, ask those at work to stop, and wait until they have."""
    lines.ask_to_stop()
    held = 0
    while True:
        # Take every token that is free, so that no new flow run can begin with it.
        with suppress(anyio.WouldBlock):
            while True:
                worker.limiter.acquire_on_behalf_of_nowait(object())
                held += 1
        if worker.limiter.borrowed_tokens == held:
            return
        await asyncio.sleep(_LOOK_SECONDS)


@contextmanager
def _in_environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable inside this context; the flow runs' processes inherit it."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
