"""Where Prefect's task runners compute stages on this machine: a thread, or worker processes."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from erl_pipeline.plan.runner import RunnerCall, StageJob, WorkerDied
from erl_pipeline.plan.stage import Resources
from flows.places import Loss, Places
from flows.stage_reports import Reports

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner
    from prefect.tasks import Task

    from flows.stage_worker import StageWork

_LOOK_SECONDS = 0.1
_NO_LOSS = Loss("a worker process", "all have ended", "Run the command again")


class StagePlace(Protocol):
    """Where one stage is computed at a time."""

    def work(self, job: StageJob) -> StageWork:
        """The computation of a stage, which its task is given."""
        ...

    def submit(self, task: Task[Any, Any], **options: Any) -> PrefectFuture[Any]:
        """Have a task runner of Prefect run the task; the options are those of its `submit`."""
        ...

    def look(self) -> None:
        """Pass on what the stage has reported; called again and again while it is computed, and at its end.

        Raises WorkerDied."""
        ...

    def final_state(self, future: PrefectFuture[Any]) -> Any:
        """The state of a future that is done. Raises WorkerDied if the process has ended."""
        ...


class StagePool(Protocol):
    """Places at which stages are computed."""

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time."""
        ...

    def taken(self, job: StageJob) -> AbstractContextManager[StagePlace]:
        """A free place for a stage, inside this context, which ends with WorkerDied if the place is lost.

        Raises Interrupted when the run was asked to stop, and NoWorkerLeft.
        """
        ...


class ThreadPool:
    """One thread of this process, so that the driver can continue meanwhile."""

    workers = 1

    def __init__(self, call: RunnerCall) -> None:
        self._call = call
        self._resources = Resources(call.worker, call.stop)
        self._runner: TaskRunner[Any] | None = None
        self._free = threading.Lock()

    def __enter__(self) -> ThreadPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            self._runner.__exit__(kind, error, traceback)
        self._resources.close()

    @contextmanager
    def taken(self, job: StageJob) -> Iterator[ThreadPool]:
        """The one place."""
        with self._free:
            yield self

    def work(self, job: StageJob) -> StageWork:
        """The computation of a stage in the thread."""
        from flows.stage_worker import ThreadWork

        return ThreadWork(job, self._resources, self._call)

    def submit(self, task: Task[Any, Any], **options: Any) -> PrefectFuture[Any]:
        """Have Prefect run the task in the thread."""
        if self._runner is None:
            from prefect.task_runners import ThreadPoolTaskRunner

            self._runner = ThreadPoolTaskRunner(max_workers=1).__enter__()
        future: PrefectFuture[Any] = self._runner.submit(task, **options)
        return future

    def look(self) -> None:
        """The stage reports to the listener directly."""

    def final_state(self, future: PrefectFuture[Any]) -> Any:
        """The state of a future that is done."""
        return _waited(future)


class ProcessPool:
    """Worker processes, each started when it first gets a stage.

    Each process keeps its models and servers to its end. So each has a task runner of Prefect of its own, and
    stages that need a device go only to the first `resources.devices` of them. The task runner of a process
    that has died computes nothing more: another one takes its place.

    Args:
        folder: for the files over which processes report, and for their log.
    """

    def __init__(self, call: RunnerCall, workers: int, folder: Path) -> None:
        self.workers = workers
        self._call = call
        self._folder = folder
        self._places: Places[_ProcessPlace] = Places(call, workers, _NO_LOSS, lambda _: False, self._start)
        self.taken = self._places.taken
        self._threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(call.worker.threads))
        self._open = ExitStack()
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> ProcessPool:
        # Processes inherit these; numeric libraries read them when they are imported.
        self._before = {name: os.environ.get(name) for name in self._threads}
        os.environ.update(self._threads)
        for place in range(self.workers):
            self._start(place)
        self._open.enter_context(stop_file(self._folder, self._call.stop))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for place in self._places.workers:
            place.close()
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        self._open.close()

    def _start(self, place: int) -> None:
        environment = dict(self._threads)
        device = _device(place, self._call.devices) if place < self._places.devices else None
        if device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = device
        self._places.enter(place, _ProcessPlace(place, environment, self._folder, self._call))


class _ProcessPlace:
    """One worker process, and the task runner that starts it."""

    def __init__(self, place: int, environment: dict[str, str], folder: Path, call: RunnerCall) -> None:
        self._environment = environment
        self._folder = folder
        self._call = call
        self._told = folder / f"reports-{place}.jsonl"
        self._runner: TaskRunner[Any] | None = None

    def work(self, job: StageJob) -> StageWork:
        """The computation of a stage in the process."""
        from flows.stage_worker import ProcessWork

        if self._runner is None:
            self._begin()
        self._reports = Reports(self._told)
        stop, log = self._folder / "stop", self._folder / "workers.log"
        return ProcessWork(pickle.dumps(job), self._environment, self._told, stop, log)

    def _begin(self) -> None:
        from prefect.task_runners import ProcessPoolTaskRunner

        self._runner = ProcessPoolTaskRunner(max_workers=1).__enter__()

    def submit(self, task: Task[Any, Any], **options: Any) -> PrefectFuture[Any]:
        """Have Prefect run the task in the process."""
        assert self._runner is not None
        # The process inherits this: Ctrl-C must reach only the driver, which asks its workers to stop.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            future: PrefectFuture[Any] = self._runner.submit(task, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return future

    def look(self) -> None:
        """Pass on what the stage has reported."""
        self._reports.relay(self._call.listener)

    def final_state(self, future: PrefectFuture[Any]) -> Any:
        """The state of a future that is done."""
        self._reports.close()
        try:
            return _waited(future)
        except BrokenExecutor as error:
            self.close()
            log = self._folder / "workers.log"
            raise WorkerDied(f"the worker process ended abruptly; see {log}") from error

    def close(self) -> None:
        """End the process, once it has closed its models and servers."""
        if self._runner is not None:
            self._runner.__exit__(None, None, None)
            self._runner = None


@contextmanager
def stop_file(folder: Path, stop: threading.Event) -> Iterator[None]:
    """Inside this context there is a file `stop` in the folder as soon as the event is set: a worker process
    looks for it."""
    ended, file = threading.Event(), folder / "stop"
    file.unlink(missing_ok=True)  # of an earlier process

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if stop.is_set():
                file.touch()
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        file.unlink(missing_ok=True)


def _waited(future: PrefectFuture[Any]) -> Any:
    future.wait()
    return future.state


def _device(place: int, devices: int) -> str | None:
    """The device of a worker if `devices` is more than 1; None means all devices, which a server over several
    GPUs needs."""
    if devices == 1:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name for name in visible.split(",") if name] if visible else []
    return names[place] if place < len(names) else str(place)
