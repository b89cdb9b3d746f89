"""Runners compute stages: in this process one after the other, or in threads or other processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.plan.job import Listener, StageJob, StageOutcome, StageProgress, compute
from erl_pipeline.plan.stage import Resources, WorkerSettings
from storage.artifacts.manifest import Manifest
from storage.errors import DamagedArtifact, EngineError, PipelineError, StoreError

if TYPE_CHECKING:
    from erl_pipeline.config.pipeline import NodesToFind

SettingsT = TypeVar("SettingsT", bound=PluginSettings)


class WorkerDied(PipelineError):
    """The process that computed a stage ended without reporting a result."""


MOST_DEATHS = 3
"""How many worker processes may die in one stage before the run gives up."""


def can_pass(error: BaseException) -> bool:
    """Whether an error of a stage may be gone when it is computed again: an engine or a store failed."""
    return isinstance(error, EngineError | StoreError) and not isinstance(error, DamagedArtifact)


class Runner(Protocol):
    """Computes planned stages. The driver decides which and when; only the driver writes the run's ledger."""

    @property
    def workers(self) -> int:
        """How many stages can be computed at the same time."""
        ...

    @property
    def retries(self) -> bool:
        """Whether it computes a stage again, by itself, that failed for a reason that can pass."""
        ...

    def prepare(self) -> None:
        """Wait until stages can be begun; called before each one, so that no stage's time includes this."""
        ...

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Begin a stage; the future gives the manifest of the committed artifact, or raises what the stage
        raised, or `WorkerDied`."""
        ...

    def finished(self, outcome: StageOutcome) -> None:
        """Take note of an artifact that the driver has recorded; called for every one."""
        ...


@dataclass(frozen=True)
class RunnerCall:
    """What a runner is opened with: the worker's settings, the listener to progress, and the event that asks
    for a stop. `packages` are those of the plug-ins whose code is part of the run's recipes. `nodes` are the
    machines that the runner has to find for trainings. `stages` are the names of the plan's stages."""

    worker: WorkerSettings
    devices: int
    listener: Listener
    stop: Event
    packages: tuple[str, ...] = ()
    nodes: NodesToFind | None = None
    stages: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RunnerPlugin(Generic[SettingsT]):
    """A runner; entry points of the group `erl_pipeline.runners` name such objects."""

    settings: type[SettingsT]
    run: Callable[[SettingsT, RunnerCall, Callable[[Runner], None]], None]
    """Calls the function with a runner for one run; on return, all that the runner started has ended."""
    elsewhere: bool = False
    """Whether stages are computed on other machines than the driver's."""
    finds_nodes: bool = False
    """Whether it finds the other machines of trainings (`RunnerCall.nodes`)."""


class InProcessConfig(PluginSettings):
    """Stages are called in this process, one after the other."""

    type: Literal["in_process"] = "in_process"


class InProcessRunner:
    """Computes a stage in `submit` itself; the future is done when `submit` returns."""

    workers = 1
    retries = False

    def __init__(self, resources: Resources, listener: Listener) -> None:
        self.resources = resources
        self._listener = listener

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, job: StageJob) -> Future[Manifest]:
        """Compute the stage now."""
        future: Future[Manifest] = Future()
        progress = StageProgress(job.planned.title, self._listener, self.resources.stop)
        try:
            future.set_result(compute(job, self.resources, progress))
        except Exception as error:  # The future hands it to the caller that asks for the result.
            future.set_exception(error)
        return future

    def finished(self, outcome: StageOutcome) -> None:
        """Do nothing: the listener shows all there is."""


def run_in_process(_settings: InProcessConfig, call: RunnerCall, body: Callable[[Runner], None]) -> None:
    """Run the body with an `InProcessRunner`; what stages keep between them is closed after it."""
    with Resources(call.worker, call.stop) as resources:
        body(InProcessRunner(resources, call.listener))


IN_PROCESS = RunnerPlugin(settings=InProcessConfig, run=run_in_process)
