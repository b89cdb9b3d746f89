"""What the task of a stage does, in the thread or process in which Prefect's task runner calls it."""

from __future__ import annotations

import builtins
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import task_run
from prefect.states import Cancelled, Completed

from erl_pipeline.garbage import search_seldom
from flows.stage_reports import CallsPassedOn, reports_to, sent_whole

if TYPE_CHECKING:
    from erl_pipeline.plan.runner import Made, RunnerCall, StageJob
    from erl_pipeline.plan.stage import Listener, Resources

_LOOK_SECONDS = 0.2
_END_SECONDS = 60.0
STOPPED = "Asked to stop; what was committed is kept"


class StageWork(Protocol):
    """The computation of one stage at one place."""

    @property
    def stop(self) -> threading.Event | None:
        """Set when the run is asked to stop; None where only `is_stopped` tells it."""
        ...

    def begin(self) -> Listener:
        """Prepare the process; returns who hears of the stage's progress."""
        ...

    def is_stopped(self) -> bool:
        """Whether the run was asked to stop."""
        ...

    def compute(self, listener: Listener, stop: threading.Event) -> Made:
        """Compute and commit the stage. Raises what the stage raises."""
        ...


def compute_stage(
    title: str, inputs: tuple[str, ...], work: StageWork, seconds: float | None, delays: tuple[float, ...]
) -> State[Any]:
    """The function of each stage's task; the data of the final state is what the stage gives.

    Args:
        title: of the stage; Prefect takes it as the name of the task run.
        inputs: ids of artifacts. Prefect notes here which task runs have made them.
        seconds: after which the stage is asked to stop.
        delays: how many seconds to wait before each time that Prefect runs a stage again which failed for a
            reason that can pass. Prefect itself would sleep, and notice no stop.

    Raises TimeoutError, which Prefect shows as the state TimedOut, and what the stage raises.
    """
    from erl_pipeline.plan.runner import can_pass, pause
    from storage.artifacts.uncommitted import Draft
    from storage.errors import Interrupted

    reported, logger = work.begin(), get_run_logger()
    logger.info("Computing from %d artifacts", len(inputs))
    listener = _TaskListener(reported, logger)
    began = time.monotonic()
    try:
        with _stop_of(work, seconds) as stop:
            made = work.compute(listener, stop)
    except Interrupted:
        if not work.is_stopped():
            raise TimeoutError(f"{title} was asked to stop after {seconds:g} s") from None
        return Cancelled(message=STOPPED)
    except Exception as error:
        if can_pass(error) and task_run.run_count <= len(delays) and not work.is_stopped():
            listener.warn(f"{title} failed and is tried again: {error}")
            pause(delays[task_run.run_count - 1], work.is_stopped)
            if work.is_stopped():
                return Cancelled(message=STOPPED)
        raise
    manifest = made.manifest if isinstance(made, Draft) else made
    done = "Wrote" if isinstance(made, Draft) else "Committed"
    counters = ", ".join(f"{name} {value:g}" for name, value in manifest.counters.items())
    logger.info("%s in %.1f s: %s", done, time.monotonic() - began, counters or "no counters")
    return Completed(message=f"{done} artifact {manifest.artifact_id}", data=made)


def may_pass(_task: Any, _run: Any, state: State[Any]) -> bool:
    """Prefect's condition of a retry: whether the reason for which a task failed can pass."""
    from erl_pipeline.plan.runner import can_pass

    return isinstance(state.data, BaseException) and can_pass(state.data)


class ThreadWork:
    """A stage in a thread of this process."""

    def __init__(self, job: StageJob, resources: Resources, call: RunnerCall) -> None:
        self._job = job
        self._resources = resources
        self._call = call
        self.stop = call.stop
        self.begun = False

    def begin(self) -> Listener:
        """Nothing has to be prepared."""
        self.begun = True
        return self._call.listener

    def is_stopped(self) -> bool:
        """Whether the run was asked to stop."""
        return self._call.stop.is_set()

    def compute(self, listener: Listener, stop: threading.Event) -> Made:
        """Compute and commit the stage."""
        return _compute(self._job, self._resources, listener, stop)


class ProcessWork:
    """A stage in a worker process of this machine.

    The process appends what it reports to one file, and stops when it finds another.

    Args:
        job: a pickled `StageJob`.
        environment: variables of the process.
        log: gets the output of the process.
    """

    stop: threading.Event | None = None

    def __init__(self, job: bytes, environment: dict[str, str], reports: Path, stop: Path, log: Path) -> None:
        self._job = job
        self._environment = environment
        self._reports = reports
        self._stop = stop
        self._log = log

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Called when the process gets the stage: it must end with the driver, and when the run is asked to
        stop, even if no task begins."""
        self.__dict__.update(state)
        # Prefect calls this when it cannot begin a task, as without the slot of a limit. Its task runner then
        # waits for ever, since the process goes on; the end of the process is noticed.
        builtins.__dict__["exit"] = os._exit
        if not _WATCHED:
            _WATCHED.append(True)
            search_seldom()
            threading.Thread(target=_end_with_driver, daemon=True).start()
        if not _AT_WORK.is_set():
            threading.Thread(target=self._end_unbegun, daemon=True).start()

    def _end_unbegun(self) -> None:
        """End the process if the run is asked to stop before the stage begins: Prefect's engine does not
        look, while it waits for a slot of a limit."""
        while not _AT_WORK.wait(_LOOK_SECONDS):
            if self._stop.exists():
                for resources in _RESOURCES.values():
                    _close(resources)
                os._exit(1)

    def begin(self) -> Listener:
        """Make the process one that writes to the log."""
        _AT_WORK.set()
        if not _PROCESS:
            _PROCESS.append(self._log)
            with self._log.open("ab") as log:
                for descriptor in (1, 2):
                    os.dup2(log.fileno(), descriptor)
        # Prefect would end the task by SystemExit, for which the driver would wait for ever.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Each time, since Prefect gives each task the driver's variables.
        os.environ.update(self._environment)
        return reports_to(self._reports)

    def is_stopped(self) -> bool:
        """Whether the run was asked to stop."""
        if self._stop.exists():
            _STOPPED.set()
        return _STOPPED.is_set()

    def compute(self, listener: Listener, stop: threading.Event) -> Made:
        """Compute and commit the stage, with the models and servers that earlier stages have left."""
        try:
            with sent_whole():
                job: StageJob = pickle.loads(self._job)
                return _compute(job, _kept_resources(job), listener, stop)
        finally:
            _AT_WORK.clear()


_WATCHED: list[bool] = []
"""Whether this worker process waits for the end of its driver."""
_PROCESS: list[Path] = []
"""The log of this worker process, once it has begun."""
_AT_WORK = threading.Event()
"""Set from the beginning of a stage of this worker process to its end."""
_STOPPED = threading.Event()
"""Set when the run was asked to stop."""
_RESOURCES: dict[str, Resources] = {}
"""What stages leave for the next ones, by the worker's settings."""


def _kept_resources(job: StageJob) -> Resources:
    from erl_pipeline.plan.stage import Resources

    name = repr(job.worker)
    if name not in _RESOURCES:
        _RESOURCES[name] = Resources(job.worker, _STOPPED)
        Finalize(None, _close, [_RESOURCES[name]], exitpriority=10)
    return _RESOURCES[name]


def _close(resources: Resources) -> None:
    limit = threading.Timer(_END_SECONDS, os._exit, [1])
    limit.daemon = True
    limit.start()
    resources.close()


def _end_with_driver() -> None:
    driver = parent_process()
    assert driver is not None
    driver.join()
    os._exit(1)


def _compute(job: StageJob, resources: Resources, listener: Listener, stop: threading.Event) -> Made:
    from erl_pipeline.plan.runner import compute
    from erl_pipeline.plan.stage import StageProgress

    return compute(job, resources, StageProgress(job.planned.title, listener, stop))


@contextmanager
def _stop_of(work: StageWork, seconds: float | None) -> Iterator[threading.Event]:
    """An event that is set when the run is asked to stop, or when the stage has taken this many seconds."""
    if seconds is None and work.stop is not None:
        yield work.stop
        return
    stop, ended = threading.Event(), threading.Event()
    deadline = None if seconds is None else time.monotonic() + seconds

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if work.is_stopped() or (deadline is not None and time.monotonic() > deadline):
                stop.set()
                return

    if work.is_stopped():
        stop.set()
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield stop
    finally:
        ended.set()
        looking.join()


class _TaskListener(CallsPassedOn):
    """Passes on what a stage reports, and writes its warnings into the log of its task run."""

    def __init__(self, listener: Listener, logger: Any) -> None:
        def tell(what: str, arguments: list[Any]) -> None:
            if what == "counting":
                logger.info("%d %s to do", *arguments[1:])
            elif what == "warn":
                logger.warning("%s", *arguments)
            getattr(listener, what)(*arguments)

        super().__init__(tell)
