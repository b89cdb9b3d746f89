"""The runner `prefect`: stages in a thread or in worker processes, each as a task that Prefect runs.

Importing this module does not import Prefect.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.pipeline import ResourcesConfig
from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin, StageJob, WorkerDied
from erl_pipeline.plan.stage import Resources
from flows.places import Loss, Places
from flows.stage_reports import Reports
from flows.stage_tasks import StageTasks
from flows.submissions import TaskOptions
from storage.filesystem import open_root

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner
    from prefect.tasks import Task

    from flows.stage_worker import StageWork, ThreadWork

_NO_LOSS = Loss("a worker process", "all have ended", "Run the command again")


class PrefectConfig(PluginSettings):
    """Stages are computed in another thread or process than the driver's, each as a task of Prefect."""

    type: Literal["prefect"] = "prefect"
    task_runner: Literal["threads", "processes"] = "threads"
    """`threads`: in the driver's process. `processes`: in worker processes, which get only the planned stage
    and the store's URI; a process that dies is replaced, and its stage is computed again."""
    workers: int = Field(default=1, ge=1, le=64)
    """Most stages that are computed at the same time; the plan, `resources.devices` and `resources.groups`
    may allow fewer."""

    stages: dict[str, TaskOptions] = Field(default_factory=dict)
    """What Prefect does with the tasks of a stage, by its name: timeout, retries and tags."""

    @model_validator(mode="after")
    def _one_thread(self) -> PrefectConfig:
        if self.task_runner == "threads" and self.workers > 1:
            raise ValueError(
                f"workers: {self.workers}; allowed with task_runner: threads is 1, since stages of "
                "one process share its model and the number of threads that torch has; set "
                "runner.task_runner to processes"
            )
        return self


class ThreadPool:
    """One thread of this process, so that the driver can continue meanwhile."""

    workers = 1
    shares_files = True
    ends_unbegun = False

    def __init__(self, call: RunnerCall) -> None:
        self._call = call
        self._resources = Resources(call.worker, call.stop)
        self._runner: TaskRunner[Any] | None = None
        self._work: ThreadWork | None = None
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

        self._work = ThreadWork(job, self._resources, self._call)
        return self._work

    @property
    def begun(self) -> bool:
        """Whether the stage has begun."""
        assert self._work is not None
        return self._work.begun

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
    stages that need a device go only to the first of them (`erl_pipeline.plan.runner.places_for`). The task
    runner of a process that has died computes nothing more: another one takes its place.

    Args:
        folder: for the files over which processes report, and for their log.
    """

    shares_files = True

    def __init__(self, call: RunnerCall, workers: int, folder: Path) -> None:
        self.workers = workers
        self._call = call
        self._folder = folder
        self._places: Places[_ProcessPlace] = Places(call, workers, _NO_LOSS, lambda _: False, self._start)
        self.taken = self._places.taken
        self._threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(call.worker.threads))
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> ProcessPool:
        # Processes inherit these; numeric libraries read them when they are imported.
        self._before = {name: os.environ.get(name) for name in self._threads}
        os.environ.update(self._threads)
        for place in range(self.workers):
            self._start(place)
        (self._folder / "stop").unlink(missing_ok=True)  # of an earlier process
        return self

    def __exit__(self, *error: object) -> None:
        for place in self._places.workers:
            place.close()
        for name, value in self._before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value

    def _start(self, place: int) -> None:
        environment = dict(self._threads)
        devices = visible_devices(place, self._call.resources, os.environ.get("CUDA_VISIBLE_DEVICES"))
        if devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = devices
        self._places.enter(place, _ProcessPlace(place, environment, self._folder, self._call))


class _ProcessPlace:
    """One worker process, and the task runner that starts it."""

    ends_unbegun = True

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

    @property
    def begun(self) -> bool:
        """Whether the stage has begun, as far as its reports were read."""
        return self._reports.begun

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
        """Pass on what the stage has reported, and that the run was asked to stop."""
        if self._call.stop.is_set():
            (self._folder / "stop").touch()
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


def _waited(future: PrefectFuture[Any]) -> Any:
    future.wait()
    return future.state


def visible_devices(place: int, resources: ResourcesConfig, visible: str | None) -> str | None:
    """`CUDA_VISIBLE_DEVICES` of a worker process; None: that of this process.

    A single worker with a device has all devices, which a server over several GPUs needs.

    Args:
        visible: `CUDA_VISIBLE_DEVICES` of this process; numbers of devices count within it.
    """
    if resources.groups is not None:
        numbers = resources.groups.of_worker(place)
    elif 1 < resources.devices > place:
        numbers = (place,)
    else:
        numbers = ()
    names = [name for name in visible.split(",") if name] if visible else []
    shown = [names[number] if number < len(names) else str(number) for number in numbers]
    return ",".join(shown) or None


def _lacks_for_groups(settings: PrefectConfig) -> str:
    if settings.task_runner == "threads":
        return "its stages share one process; set runner.task_runner: processes and runner.workers: 2"
    return "" if settings.workers > 1 else "it has one worker process; set runner.workers: 2"


def run_with_prefect(settings: PrefectConfig, call: RunnerCall, body: Callable[[Runner], None]) -> None:
    """Call `body` with a runner that computes in a thread or in processes; they have ended when this returns.

    Raises OrchestratorError when Prefect's API cannot be started or cannot be reached at first. When it goes
    away later, the run continues, and the listener hears what Prefect missed.
    """
    folder = open_root(call.worker.store_uri).scratch / "runs" / call.worker.run
    folder.mkdir(parents=True, exist_ok=True)
    pool: ThreadPool | ProcessPool
    if settings.task_runner == "threads":
        pool = ThreadPool(call)
    else:
        pool = ProcessPool(call, settings.workers, folder)
    with pool, StageTasks(call, pool, settings.stages, folder / "prefect.log") as tasks:
        body(tasks)


PREFECT = RunnerPlugin(settings=PrefectConfig, run=run_with_prefect, lacks_for_groups=_lacks_for_groups)
