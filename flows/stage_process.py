"""The program of a worker process: it computes the stages that a driver sends, one after the other.

It gets only planned stages and the store's URI, and keeps models and servers between stages. It sends its
messages back over the same connection: progress, warnings, the manifest or the error. It ends when the driver
says so, or when the driver is gone.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.resources import Resources
from flows.stage_answers import FromWorker, answer


@dataclass(frozen=True)
class Compute:
    """Message to a worker: compute this stage."""

    job: StageJob


@dataclass(frozen=True)
class Stop:
    """Message to a worker: the run was asked to stop."""


@dataclass(frozen=True)
class Close:
    """Message to a worker: there are no more stages."""


FromDriver = Compute | Stop | Close


def main() -> None:
    """Serve the driver that holds the other end of the pair of sockets."""
    compute_stages(Connection(int(sys.argv[1])))


def compute_stages(connection: Connection[Any, Any]) -> int:
    """Compute the stages that come over a connection, until the driver says that there are no more; returns
    how many came. The connection stays open. If the driver is gone, this process ends."""
    line, count = Line(connection), 0
    resources: Resources | None = None
    while (job := line.next_job()) is not None:
        if resources is None:
            resources = Resources(job.worker, line.stop)
        line.send(answer(job, resources, line.send, line.stop))
        count += 1
    if resources is not None:
        resources.close()
    return count


class Line:
    """The worker's end of the connection. `stop` is set when the run was asked to stop."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.stop = threading.Event()
        self._connection = connection
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[StageJob | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def next_job(self) -> StageJob | None:
        """Wait for the next stage; None when there are no more."""
        return self._jobs.get()

    def send(self, message: FromWorker) -> None:
        """Send a message to the driver; if the driver is gone, end this process."""
        content = pickle.dumps(message)
        try:
            with self._lock:
                self._connection.send_bytes(content)
        except OSError:
            os._exit(1)

    def _receive(self) -> None:
        """Receive the driver's messages; end this process immediately when the driver is gone."""
        try:
            while True:
                message: FromDriver = pickle.loads(self._connection.recv_bytes())
                if isinstance(message, Compute):
                    self._jobs.put(message.job)
                elif isinstance(message, Stop):
                    self.stop.set()
                else:
                    self._jobs.put(None)
        except (EOFError, OSError):
            os._exit(1)
