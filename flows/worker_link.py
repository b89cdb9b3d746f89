"""The connection between a worker and the processes of its flow runs.

Over it a flow run reports what it does, for the worker's metrics, and the worker asks it to stop. When the
worker ends, however it ends, the connection closes and the flow run's process ends too (Prefect leaves the
process of a flow run running whose worker was killed). What the flow run had committed is kept. The socket is
a file in a folder that only this user can enter.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from erl_pipeline.plan.stage import StageOutcome

LINK_VARIABLE = "ERL_PIPELINE_WORKER_LINK"
"""Environment variable of a flow run's process: the file of its worker's socket."""

_LOG = logging.getLogger("prefect.erl_pipeline")
"""Below Prefect's, whose log `serve` writes into a file."""


@dataclass(frozen=True)
class FlowStarted:
    """A flow run has begun its work."""

    flow: str
    run: str


@dataclass(frozen=True)
class FlowEnded:
    """A flow run has ended: `completed`, `failed`, `cancelled`, `skipped`, or `killed` (without a report)."""

    flow: str
    run: str
    outcome: str


@dataclass(frozen=True)
class StageEnded:
    """A stage gave its artifact; `iterations` is the number of the run's iterations that are then done."""

    run: str
    iterations: int
    outcome: StageOutcome


Message = FlowStarted | FlowEnded | StageEnded


class WorkerLink:
    """The end of the connection in a flow run's process."""

    def __init__(self, connection: Connection[Any, Any] | None) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message to the worker, if one listens."""
        if self._connection is None:
            return
        with self._lock:
            self._connection.send(message)


@contextmanager
def link_to_worker(address: str | None) -> Iterator[WorkerLink]:
    """The connection to the worker that started this process; this process ends when the worker does.

    Args:
        address: the value of `LINK_VARIABLE`; None if the worker is not this program's
            (`prefect worker start`) and so has to end its processes itself.
    """
    if address is None:
        yield WorkerLink(None)
        return
    try:
        connection = Client(address)
    except OSError:
        os._exit(1)  # The worker ended while this process was starting.
    threading.Thread(target=_end_with_worker, args=(connection,), daemon=True).start()
    yield WorkerLink(connection)


def _end_with_worker(connection: Connection[Any, Any]) -> None:
    """Stop this flow run when the worker sends anything; end this process when the connection closes, which
    means that the worker has ended."""
    try:
        while True:
            connection.recv_bytes()
            os.kill(os.getpid(), signal.SIGTERM)
    except (OSError, EOFError):
        os._exit(1)


class FlowRunLines:
    """The worker's ends of the connections."""

    def __init__(self, handle: Callable[[Message], None]) -> None:
        self.ended = threading.Event()
        self._handle = handle
        self._lock = threading.Lock()
        self._open: set[Connection[Any, Any]] = set()
        self._stopping = False

    def ask_to_stop(self) -> None:
        """Ask all flow runs to end after the commit in progress, also those that are just beginning."""
        with self._lock:
            self._stopping = True
            for connection in self._open:
                _send_stop(connection)

    def hear(self, listener: Listener) -> None:
        """Hear each flow run that connects, in a thread of its own, until the end."""
        while True:
            connection = listener.accept()
            if self.ended.is_set():
                connection.close()
                return
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()

    def _receive(self, connection: Connection[Any, Any]) -> None:
        with self._lock:
            self._open.add(connection)
            if self._stopping:
                _send_stop(connection)
        started: FlowStarted | None = None
        while True:
            try:
                sent = connection.recv_bytes()
            except (OSError, EOFError):
                break
            # Whatever fails here, reading goes on: a flow run whose messages nobody reads stands still as
            # soon as the socket is full, with its run and its device.
            try:
                message: Message = pickle.loads(sent)
                if isinstance(message, FlowStarted):
                    started = message
                elif isinstance(message, FlowEnded):
                    started = None
                self._handle(message)
            except Exception:
                _LOG.exception("A message of a flow run could not be handled")
        with self._lock:
            self._open.remove(connection)
        if started is not None:
            self._handle(FlowEnded(started.flow, started.run, "killed"))


@contextmanager
def listen_to_flow_runs(handle: Callable[[Message], None]) -> Iterator[tuple[FlowRunLines, str]]:
    """Listen for connections of flow runs; gives their ends here, and the value for `LINK_VARIABLE`.

    Args:
        handle: called with every message, in a separate thread for each flow run. A flow run whose process
            ended without a report is reported as `killed`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="erl-pipeline-") as folder,
        Listener(f"{folder}/worker") as listener,
    ):
        lines, address = FlowRunLines(handle), str(listener.address)
        hearing = threading.Thread(target=lines.hear, args=(listener,), daemon=True)
        hearing.start()
        try:
            yield lines, address
        finally:
            lines.ended.set()
            Client(address).close()  # wakes the thread
            hearing.join()


def _send_stop(connection: Connection[Any, Any]) -> None:
    with suppress(OSError):  # The flow run may just have ended by itself.
        connection.send_bytes(b"stop")
