"""A Prefect worker in this process: it runs the flow runs that are due, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import anyio
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_WORKER_PREFETCH_SECONDS,
    PREFECT_WORKER_QUERY_SECONDS,
    temporary_settings,
)
from prefect.workers.process import ProcessWorker

from flows.deployments import WORK_POOL
from flows.local_server import log_to_file
from flows.worker_link import LINK_VARIABLE, FlowRunLines, Message, listen_to_flow_runs

_QUERY_SECONDS = 2.0
_LOOK_SECONDS = 0.2


def work(
    url: str,
    name: str,
    limit: int,
    handle: Callable[[Message], None],
    stop: threading.Event,
    log_file: Path,
) -> None:
    """Run what is due until `stop` is set; then ask the flow runs at work to stop, and wait for them.

    Flow runs end with this process, also when it is killed.

    Args:
        url: Prefect's API.
        name: distinguishes this worker from others of the same server.
        limit: most flow runs at the same time, including those that wait for a device.
        handle: called with the messages of flow runs, in threads of their own.
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
        asyncio.run(_work(name, limit, lines, stop))


def set_device_limit(client: SyncPrefectClient, name: str, slots: int | None) -> int:
    """Make the concurrency limit from which flow runs take devices; returns its number of slots.

    If `slots` is None, an existing limit is kept, else one with a single slot is made.
    """
    existing = {each.name: each.limit for each in client.read_global_concurrency_limits(limit=200)}
    wanted = slots if slots is not None else existing.get(name, 1)
    client.upsert_global_concurrency_limit_by_name(name, wanted)
    return wanted


async def _work(name: str, limit: int, lines: FlowRunLines, stop: threading.Event) -> None:
    worker = ProcessWorker(WORK_POOL, name=name, limit=limit)
    working = asyncio.create_task(worker.start())
    while not stop.is_set() and not working.done():
        await asyncio.sleep(_LOOK_SECONDS)
    if not working.done():
        if _has_begun(worker):
            await _drain(worker, lines)
        working.cancel()
    try:
        await working
    except asyncio.CancelledError:
        return


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
