"""The program of a worker process: it computes the stages that a driver sends, one after the other.

It gets nothing but planned stages and the store's URI, and keeps models and servers between stages. What it
has to say goes back over the same line: progress, warnings, the manifest or the error. It ends when the
driver says so, or is gone.
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
    """Compute this stage."""

    job: StageJob


@dataclass(frozen=True)
class Stop:
    """The run was asked to stop."""


@dataclass(frozen=True)
class Close:
    """No stage comes any more."""


FromDriver = Compute | Stop | Close


def main() -> None:
    """Serve the driver that holds the other end of the line."""
    line = Line(Connection(int(sys.argv[1])))
    resources: Resources | None = None
    while (job := line.next_job()) is not None:
        if resources is None:
            resources = Resources(job.worker, line.stop)
        line.send(answer(job, resources, line.send, line.stop))
    if resources is not None:
        resources.close()


class Line:
    """The worker's end of the line. `stop` is set when the run was asked to stop."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.stop = threading.Event()
        self._connection = connection
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[StageJob | None] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def next_job(self) -> StageJob | None:
        """The next stage; None when there is none any more."""
        return self._jobs.get()

    def send(self, message: FromWorker) -> None:
        """Tell the driver; without one, this process ends."""
        content = pickle.dumps(message)
        try:
            with self._lock:
                self._connection.send_bytes(content)
        except ConnectionError:
            os._exit(1)

    def _receive(self) -> None:
        """Take what the driver sends; end at once when it is gone."""
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
