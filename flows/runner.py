"""The runner `prefect`: stages in a thread or in worker processes, each as a task that Prefect runs.

Importing this module does not import Prefect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.plan.runner import Runner, RunnerCall, RunnerPlugin
from flows.stage_pools import ProcessPool, ThreadPool
from flows.stage_tasks import StageTasks
from flows.submissions import TaskOptions
from storage.filesystem import open_root


class PrefectConfig(PluginSettings):
    """Stages are computed in another thread or process than the driver's, each as a task of Prefect."""

    type: Literal["prefect"] = "prefect"
    task_runner: Literal["threads", "processes"] = "threads"
    """`threads`: in the driver's process. `processes`: in worker processes, which get only the planned stage
    and the store's URI; a process that dies is replaced, and its stage is computed again."""
    workers: int = Field(default=1, ge=1, le=64)
    """Most stages that are computed at the same time; the plan and `resources.devices` may allow fewer."""

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


PREFECT = RunnerPlugin(settings=PrefectConfig, run=run_with_prefect)
