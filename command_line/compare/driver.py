"""Doing the tasks of a comparison in worker processes, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from command_line.compare.worker import Done, Failed, FromWorker, Stopped, Warned, serve
from erl_pipeline.comparison.work import Task

_LOOK_SECONDS = 0.2
_IMPORTED = [
    "command_line.compare.worker",
    "erl_pipeline.episodes.play",
    "erl_pipeline.engines.embedded_models",
    "erl_pipeline.policies.embedding",
    "erl_pipeline.policies.tiny.cold_start",
    "erl_pipeline.trainers.local.trainer",
    "storage.memory.view",
]
"""Modules that are imported once, in the process that workers are forked from, since importing takes seconds.
"""


@dataclass(frozen=True)
class Ended:
    """How a task ended: `failure` is empty if it is done, and None if it was stopped and can be continued."""

    task: Task
    failure: str | None


@dataclass
class _Worker:
    """A process at work on a task."""

    task: Task
    process: BaseProcess
    line: Connection[Any, Any]


def do_tasks(
    tasks: Sequence[Task],
    jobs: int,
    threads: int,
    stop: threading.Event,
    ended: Callable[[Ended], None],
    warn: Callable[[str], None],
) -> None:
    """Do all tasks, each in a process of its own, `jobs` at a time and in their order.

    When `stop` is set, no more tasks are begun, and those at work end after the commit in progress. A task
    whose process dies has failed; the others continue.

    Args:
        threads: CPU threads of each process.
        ended: called when a task that was begun has ended.
        warn: called with each warning of a run.
    """
    # Torch reads it when it is imported, in the process that workers are forked from.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    waiting, at_work = deque(tasks), dict[Any, _Worker]()
    told_to_stop = False
    while at_work or (waiting and not stop.is_set()):
        while waiting and len(at_work) < jobs and not stop.is_set():
            worker = _begin(context, waiting.popleft())
            at_work[worker.line] = worker
        if stop.is_set() and not told_to_stop:
            told_to_stop = True
            for worker in at_work.values():
                _tell_to_stop(worker)
        for line in wait(list(at_work), timeout=_LOOK_SECONDS):
            worker = at_work[line]
            message = _next_message(worker, stop.is_set())
            if isinstance(message, Warned):
                warn(f"{worker.task.run.config.name}: {message.message}")
                continue
            del at_work[line]
            worker.process.join()
            worker.line.close()
            failure = message.message if isinstance(message, Failed) else None
            ended(Ended(worker.task, "" if isinstance(message, Done) else failure))


def _begin(context: multiprocessing.context.ForkServerContext, task: Task) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(task, theirs), daemon=True)
    process.start()
    theirs.close()  # With no copy open here, the driver sees when the process ends.
    return _Worker(task, process, ours)


def _tell_to_stop(worker: _Worker) -> None:
    try:
        worker.line.send(None)
    except ConnectionError:
        return  # It has ended: its last message, or the lack of one, says how.


def _next_message(worker: _Worker, stopped: bool) -> FromWorker:
    """The next message of a process; for a process that died, a message that says so."""
    try:
        message: FromWorker = worker.line.recv()
        return message
    except (EOFError, ConnectionError):
        worker.process.join()
        if stopped:
            return Stopped()
        return Failed(f"its process ended with status {worker.process.exitcode} and said nothing")
