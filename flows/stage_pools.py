"""Where stages are computed: a thread of this process, or worker processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

from erl_pipeline.plan.job import StageJob, compute
from erl_pipeline.plan.listener import Listener, StageProgress
from erl_pipeline.plan.resources import Resources, WorkerSettings
from erl_pipeline.plan.runner import RunnerCall, WorkerDied
from erl_pipeline.plan.stage import Needs
from flows.driver_line import DriverLine, LineBroken
from storage.artifacts.manifest import Manifest

_END_SECONDS = 60.0

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from flows.stage_process import main
main()
"""


class _Pool(ABC):
    """Threads that compute stages, or wait for processes that do."""

    def __init__(self, call: RunnerCall, workers: int) -> None:
        self.workers = workers
        self._call = call
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="stage")

    def submit(self, job: StageJob, listener: Listener, stop: threading.Event) -> Future[Manifest]:
        """Begin a stage, which reports to this listener and ends early when `stop` is set."""
        return self._threads.submit(copy_context().run, self._compute, job, listener, stop)

    @abstractmethod
    def _compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Compute a stage, in a thread of the pool."""

    @abstractmethod
    def _close(self) -> None:
        """End what was started; called when no stage is at work any more."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        self._close()


class ThreadPool(_Pool):
    """One thread of this process, so that the driver can continue meanwhile."""

    def __init__(self, call: RunnerCall) -> None:
        super().__init__(call, workers=1)
        self._resources = Resources(call.worker, call.stop)

    def __enter__(self) -> ThreadPool:
        return self

    def _compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        return compute(job, self._resources, StageProgress(job.planned.title, listener, stop))

    def _close(self) -> None:
        self._resources.close()


class ProcessPool(_Pool):
    """Worker processes, each started when it first gets a stage.

    Each process keeps its models and servers to its end. So stages that need a device go only to the first
    `resources.devices` processes, and the others are kept for stages that need none.

    Args:
        log_file: gets the output of the processes.
    """

    def __init__(self, call: RunnerCall, workers: int, log_file: Path) -> None:
        super().__init__(call, workers)
        self._devices = min(call.devices, workers)
        self._log_file = log_file
        self._processes: dict[int, WorkerProcess] = {}
        self._free = list(range(workers))
        self._freed = threading.Condition()

    def __enter__(self) -> ProcessPool:
        return self

    def _compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        with self._place(job.planned.stage.needs) as place:
            if place not in self._processes:
                visible = _device(place, self._call.devices) if place < self._devices else None
                self._processes[place] = WorkerProcess(self._call.worker, visible, self._log_file)
            try:
                return self._processes[place].compute(job, listener, stop)
            except WorkerDied:
                del self._processes[place]
                raise

    @contextmanager
    def _place(self, needs: Needs) -> Iterator[int]:
        """Take an idle worker; the last suitable one, since the first are for stages that need a device."""
        allowed = self._devices if needs == "device" else self.workers
        with self._freed:
            self._freed.wait_for(lambda: any(each < allowed for each in self._free))
            place = max(each for each in self._free if each < allowed)
            self._free.remove(place)
        try:
            yield place
        finally:
            with self._freed:
                self._free.append(place)
                self._freed.notify_all()

    def _close(self) -> None:
        for process in self._processes.values():
            process.ask_to_close()
        for process in self._processes.values():
            process.wait()


class WorkerProcess:
    """A process of `flows.stage_process`, and the driver's end of the connection to it.

    The connection is a pair of sockets that only these two hold, so each sees immediately when the other is
    gone.

    Args:
        visible_device: the device that CUDA may see; None for all.
    """

    def __init__(self, settings: WorkerSettings, visible_device: str | None, log_file: Path) -> None:
        ours, theirs = socket.socketpair()
        self._log_file = log_file
        threads = str(settings.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        if visible_device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible_device
        with theirs, log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # Ctrl-C must only reach the driver, which asks its workers to stop
            )
        self._line = DriverLine(Connection(ours.detach()))

    def compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Have a stage computed. Raises what the stage raised, and WorkerDied when the process ended."""
        try:
            return self._line.compute(job, listener, stop)
        except LineBroken as error:
            raise self._died() from error

    def ask_to_close(self) -> None:
        """Ask it to end its models and servers, and then itself."""
        self._line.ask_to_close()

    def wait(self) -> None:
        """Wait for its end, then end the processes that it has left behind."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._line.close()

    def _died(self) -> WorkerDied:
        self.wait()
        status = self._process.returncode
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return WorkerDied(f"worker process {self._process.pid} ended {how}; see {self._log_file}")


def _device(place: int, devices: int) -> str | None:
    """The device of a worker if `devices` is more than 1; None means all devices, which a server over several
    GPUs needs."""
    if devices == 1:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name for name in visible.split(",") if name] if visible else []
    return names[place] if place < len(names) else str(place)
