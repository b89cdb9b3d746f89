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
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from erl_pipeline.plan.job import StageJob, StageOutcome, compute
from erl_pipeline.plan.listener import StageProgress
from erl_pipeline.plan.resources import Resources
from storage.artifacts.manifest import Manifest


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


@dataclass(frozen=True)
class Told:
    """A call of the listener's method `what`."""

    what: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Computed:
    """The stage's artifact is committed."""

    manifest: Manifest


@dataclass(frozen=True)
class Failed:
    """The stage raised this."""

    error: Exception


FromDriver = Compute | Stop | Close
FromWorker = Told | Computed | Failed


def main() -> None:
    """Serve the driver that holds the other end of the line."""
    line = Line(Connection(int(sys.argv[1])))
    resources: Resources | None = None
    while (job := line.next_job()) is not None:
        if resources is None:
            resources = Resources(job.worker, line.stop)
        line.send(_answer(job, resources, line))
    if resources is not None:
        resources.close()


def _answer(job: StageJob, resources: Resources, line: Line) -> FromWorker:
    try:
        return Computed(compute(job, resources, StageProgress(job.planned.title, line, line.stop)))
    except Exception as error:  # Whatever a stage raises is raised where it was asked for.
        error.add_note("In the worker process:\n" + traceback.format_exc())
        return Failed(_portable(error))


def _portable(error: Exception) -> Exception:
    """An error that can be sent: itself, where it survives pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # Errors of other packages fail at this in any way.
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


class Line:
    """The worker's end of the line; a `Listener` that passes on what it is told.

    `stop` is set when the run was asked to stop.
    """

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

    def stage_started(self, title: str) -> None:
        """The driver knows."""

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units."""
        self.send(Told("counting", (title, total, unit)))

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""
        self.send(Told("advanced", (title, amount, numbers)))

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long."""
        self.send(Told("waiting", (title, what, seconds, detail)))

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """The driver knows."""

    def warn(self, message: str) -> None:
        """Something that a user should know."""
        self.send(Told("warn", (message,)))

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
