"""The program of a worker process of a comparison: it does one run, so that its death ends no other run. It
ends when it is told to stop, and immediately when the driver is gone."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from erl_pipeline.comparison.work import Task, run_task
from erl_pipeline.plan.listener import NullListener
from storage.errors import Interrupted, PipelineError


@dataclass(frozen=True)
class Warned:
    """A warning for the user; the run continues."""

    message: str


@dataclass(frozen=True)
class Done:
    """The task is done."""


@dataclass(frozen=True)
class Stopped:
    """The task was stopped, as asked."""


@dataclass(frozen=True)
class Failed:
    """The task failed, and why."""

    message: str


FromWorker = Warned | Done | Stopped | Failed


class _Line(NullListener):
    """A listener that passes warnings on to the driver."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self.stop = threading.Event()
        threading.Thread(target=self._receive, daemon=True).start()

    def warn(self, message: str) -> None:
        """Send a warning for the user."""
        self.send(Warned(message))

    def send(self, message: FromWorker) -> None:
        """Send a message to the driver; if the driver is gone, end this process."""
        try:
            self.connection.send(message)
        except ConnectionError:
            os._exit(1)

    def _receive(self) -> None:
        """Wait for the driver's only message, which asks to stop."""
        try:
            self.connection.recv()
        except (EOFError, OSError):
            os._exit(1)
        self.stop.set()


def serve(task: Task, connection: Connection[Any, Any]) -> None:
    """Do a task, and tell the driver how it ended."""
    # Ctrl-C reaches all processes of a terminal; the driver handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = _Line(connection)
    line.send(_end(task, line))


def _end(task: Task, line: _Line) -> FromWorker:
    try:
        run_task(task, line, line.stop)
    except Interrupted:
        return Stopped()
    except PipelineError as error:
        return Failed(str(error))
    except Exception:  # Any exception is reported as this run's failure; the other runs continue.
        return Failed(traceback.format_exc())
    return Done()
