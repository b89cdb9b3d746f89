"""Runners: they call stages, one after the other in this process, or in threads or processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.plan.job import StageJob, StageOutcome, compute
from erl_pipeline.plan.listener import Listener, StageProgress
from erl_pipeline.plan.resources import Resources, WorkerSettings
from storage.artifacts.manifest import Manifest
from storage.errors import PipelineError

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


class WorkerDied(PipelineError):
    """The process that computed a stage ended without a word; nothing of the stage is committed."""


class Runner(Protocol):
    """Computes planned stages. The driver decides which, and when; it alone writes the run's ledger."""

    @property
    def workers(self) -> int:
        """Stages that can be computed at the same time."""
        ...

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Begin a stage; the future gives the manifest of the committed artifact, or raises what the stage
        raised, or `WorkerDied`."""
        ...

    def finished(self, outcome: StageOutcome) -> None:
        """Is told of every artifact that the driver has recorded."""
        ...


@dataclass(frozen=True)
class RunnerCall:
    """What a runner is opened with: the run, who is told of progress, and the wish to stop. `packages` are
    those of the plug-ins whose code the run follows from."""

    worker: WorkerSettings
    devices: int
    listener: Listener
    stop: Event
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunnerPlugin(Generic[SettingsT]):
    """A runner, as an entry point of group `erl_pipeline.runners` names it."""

    settings: type[SettingsT]
    run: Callable[[SettingsT, RunnerCall, Callable[[Runner], None]], None]
    """Calls the function with a runner for one run; all that the runner has started has ended after it."""
    elsewhere: bool = False
    """Whether stages are computed on other machines than the driver's."""


class InProcessConfig(PluginSettings):
    """Stages are called in this process, one after the other."""

    type: Literal["in_process"] = "in_process"


class InProcessRunner:
    """Calls a stage where it is submitted; the future is done when `submit` returns."""

    workers = 1

    def __init__(self, resources: Resources, listener: Listener) -> None:
        self.resources = resources
        self._listener = listener

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Compute the stage now."""
        future: Future[Manifest] = Future()
        progress = StageProgress(job.planned.title, self._listener, self.resources.stop)
        try:
            future.set_result(compute(job, self.resources, progress))
        except Exception as error:  # A future carries what the stage raised to whoever asks for its result.
            future.set_exception(error)
        return future

    def finished(self, outcome: StageOutcome) -> None:
        """Nothing is shown beside what the listener shows."""


def run_in_process(_settings: InProcessConfig, call: RunnerCall, body: Callable[[Runner], None]) -> None:
    """Compute with this process's threads; what stages keep between them ends with the body."""
    with Resources(call.worker, call.stop) as resources:
        body(InProcessRunner(resources, call.listener))


IN_PROCESS = RunnerPlugin(settings=InProcessConfig, run=run_in_process)
