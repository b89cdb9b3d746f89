"""Training the runs of a comparison in processes, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from erl_pipeline.comparison import runs as trainings
from erl_pipeline.plan.stage import Listener
from storage.errors import Interrupted, PipelineError


@dataclass(frozen=True)
class Warned:
    """A warning for the user; the run continues."""

    message: str


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended: `failure` is empty if it is done, and None if it was stopped and can be continued."""

    failure: str | None


class _Line(Listener):
    """A listener that passes warnings on to the driver."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self.stop = threading.Event()
        threading.Thread(target=self._receive, daemon=True).start()

    def warn(self, message: str) -> None:
        """Send a warning for the user."""
        self.send(Warned(message))

    def send(self, message: Warned | TaskEnd) -> None:
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


def serve(task: trainings.TrainingTask, connection: Connection[Any, Any]) -> None:
    """Do a task, and tell the driver how it ended."""
    # Ctrl-C reaches all processes of a terminal; the driver handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = _Line(connection)
    line.send(_end(task, line))


def _end(task: trainings.TrainingTask, line: _Line) -> Warned | TaskEnd:
    try:
        trainings.run_task(task, line, line.stop)
    except Interrupted:
        return TaskEnd(None)
    except PipelineError as error:
        return TaskEnd(str(error))
    except Exception:  # Any exception is reported as this run's failure; the other runs continue.
        return TaskEnd(traceback.format_exc())
    return TaskEnd("")


_LOOK_SECONDS = 0.2
IMPORTED = [
    "command_line.compare.few_searches",
    "command_line.compare.processes",
    "erl_pipeline.episodes.play",
    "erl_pipeline.engines.embedded.engine",
    "erl_pipeline.policies.embedding",
    "erl_pipeline.policies.tiny.cold_start",
    "erl_pipeline.trainers.local.trainer",
    "storage.memory.view",
    # What LanceDB imports. LanceDB itself starts a thread, which no fork takes along.
    "lance_namespace",
    "pandas",
]
"""Modules that are imported once, in the process that workers are forked from, since importing takes seconds.
"""


def do_tasks(
    tasks: Sequence[trainings.TrainingTask],
    jobs: int,
    threads: int,
    stop: threading.Event,
    ended: Callable[[trainings.TrainingTask, str | None], None],
    warn: Callable[[str], None],
) -> None:
    """Do all tasks, each in a process of its own, `jobs` at a time and in their order.

    When `stop` is set, no more tasks are begun, and those at work end after the commit in progress. A task
    whose process dies has failed; the others continue.

    Args:
        threads: CPU threads of each process.
        ended: called when a task that was begun has ended, with its failure as in `TaskEnd`.
        warn: called with each warning of a run.
    """
    # Torch reads it when it is imported, in the process that workers are forked from.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    one_at_a_time = threading.Lock()

    def do(task: trainings.TrainingTask) -> None:
        if stop.is_set():
            return
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(task, theirs), daemon=True)
        process.start()
        theirs.close()  # With no copy open here, the driver sees when the process ends.

        def tell(message: str) -> None:
            with one_at_a_time:
                warn(f"{task.run.config.name}: {message}")

        with ours:
            end = _until_its_end(ours, process, stop, tell)
        process.join()
        with one_at_a_time:
            ended(task, end.failure)

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(do, task) for task in tasks]:
            done.result()


def _until_its_end(
    line: Connection[Any, Any], process: BaseProcess, stop: threading.Event, tell: Callable[[str], None]
) -> TaskEnd:
    """Pass on warnings, and the request to stop, until a process ends; for one that died, a message that says
    so."""
    told_to_stop = False
    while True:
        try:
            if stop.is_set() and not told_to_stop:
                told_to_stop = True
                # Where it has ended, its last message, or the lack of one, says how.
                with suppress(ConnectionError):
                    line.send(None)
            if line.poll(_LOOK_SECONDS):
                message: Warned | TaskEnd = line.recv()
                if isinstance(message, TaskEnd):
                    return message
                tell(message.message)
        except (EOFError, ConnectionError):
            process.join()
            if stop.is_set():
                return TaskEnd(None)
            return TaskEnd(f"its process ended with status {process.exitcode} and said nothing")
