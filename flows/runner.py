"""The runner `prefect`: stages in a thread or in worker processes, each shown as a task run of Prefect.

The plan's walk decides what is computed and when, so Prefect decides nothing: it only receives reports. A
separate thread sends them (`flows.task_runs`), so no stage waits for Prefect, for its import, or for its
server's start. Importing this module does not import Prefect.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Literal, Protocol
from uuid import UUID

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.plan.job import StageJob, StageOutcome
from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin
from flows.stage_pools import ProcessPool, ThreadPool
from flows.task_runs import TaskRuns
from storage.artifacts.manifest import Manifest
from storage.filesystem import open_root


class PrefectConfig(PluginSettings):
    """Stages are computed in another thread or process than the driver's, and each is a task run on Prefect's
    page."""

    type: Literal["prefect"] = "prefect"
    task_runner: Literal["threads", "processes"] = "threads"
    """`threads`: in the driver's process. `processes`: in worker processes, which get only the planned stage
    and the store's URI; a process that dies is replaced, and its stage is computed again."""
    workers: int = Field(default=1, ge=1, le=64)
    """Most stages that are computed at the same time; the plan and `resources.devices` may allow fewer."""

    @model_validator(mode="after")
    def _one_thread(self) -> PrefectConfig:
        if self.task_runner == "threads" and self.workers > 1:
            raise ValueError(
                f"workers: {self.workers}; allowed with task_runner: threads is 1, since stages of "
                "one process share its model and the number of threads that torch has; set "
                "runner.task_runner to processes"
            )
        return self


class StagePool(Protocol):
    """Computes stages in threads or processes."""

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time."""
        ...

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Begin a stage."""
        ...


class PrefectRunner:
    """A `Runner` whose computed stages are task runs of one flow run. Reused stages have no task runs."""

    def __init__(self, pool: StagePool, task_runs: TaskRuns) -> None:
        self._pool = pool
        self._task_runs = task_runs

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time."""
        return self._pool.workers

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Begin a stage. Raises OrchestratorError when Prefect's API cannot be started or reached."""
        task_run = self._task_runs.started(job.planned)
        future = self._pool.submit(job)
        future.add_done_callback(lambda ended: self._ended(task_run, ended))
        return future

    def finished(self, outcome: StageOutcome) -> None:
        """Count an artifact that the flow run computed or reused."""
        self._task_runs.recorded(outcome)

    def _ended(self, task_run: UUID, future: Future[Manifest]) -> None:
        error = future.exception()
        message = "" if error else f"Committed artifact {future.result().artifact_id}"
        self._task_runs.ended(task_run, error, message)


def run_with_prefect(settings: PrefectConfig, call: RunnerCall, body: Callable[[Runner], None]) -> None:
    """Call `body` with a runner that computes in a thread or in processes; they have ended when this returns.

    Raises OrchestratorError when Prefect's API cannot be started or cannot be reached at first. When it goes
    away later, the run continues, and the listener hears what Prefect missed.
    """
    folder = open_root(call.worker.store_uri).scratch / "runs" / call.worker.run
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        task_runs = stack.enter_context(TaskRuns(call, folder / "prefect.log"))
        pool: StagePool
        if settings.task_runner == "threads":
            pool = stack.enter_context(ThreadPool(call))
        else:
            pool = stack.enter_context(ProcessPool(call, settings.workers, folder / "workers.log"))
        body(PrefectRunner(pool, task_runs))


PREFECT = RunnerPlugin(settings=PrefectConfig, run=run_with_prefect)
