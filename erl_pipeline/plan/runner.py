"""Runners compute stages and commit what they make: in this process one after the other, or in threads or
other processes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.pipeline import NO_NODES_TO_FIND, NodesToFind
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.repetition import require_committed
from erl_pipeline.plan.stage import (
    Listener,
    Needs,
    NextStage,
    Resources,
    StageCall,
    StageOutcome,
    StageProgress,
    StageResult,
    WorkerSettings,
)
from storage.artifacts.manifest import Manifest, describe_files
from storage.artifacts.recipe import Recipe
from storage.artifacts.uncommitted import Draft, Told, Writer, draft
from storage.errors import DamagedArtifact, EngineError, PipelineError, PrunedFileError, StoreError
from storage.texts import counted

if TYPE_CHECKING:
    from erl_pipeline.config.pipeline import ResourcesConfig


SettingsT = TypeVar("SettingsT", bound=PluginSettings)

Made = Manifest | Draft
"""What a stage gives: a committed artifact, or one that is written."""


@dataclass(frozen=True)
class StageJob:
    """All that another process needs to compute a stage: the stage and where the store is.

    `repeated` are stages whose artifacts are committed, and which are computed again before it, for what they
    leave in the process's memory: the state of the optimizer, which no file has. `state`: whether a
    checkpoint is written with that state. `folder` is where the files are written that the driver then
    commits; None: they are committed where they are computed. `expected` are artifacts that are written and
    that the driver commits. `following` are stages that the same worker is asked for next, if all goes well.
    """

    planned: PlannedStage
    worker: WorkerSettings
    repeated: tuple[PlannedStage, ...] = ()
    state: bool = True
    folder: Path | None = None
    expected: tuple[Manifest, ...] = ()
    following: tuple[NextStage, ...] = ()


def compute(job: StageJob, resources: Resources, progress: StageProgress) -> Made:
    """Compute a stage from its inputs, and return the manifest of its committed artifact; or its draft, if
    the driver commits it.

    If another process was first, its artifact is kept. Raises what the stage raises, `Interrupted` when the
    run was asked to stop, StoreError when the store cannot be read or written, and NotRepeated when a
    repeated stage gives other bytes than those that are committed.
    """
    planned = job.planned
    recipe, store = planned.recipe, resources.store
    progress.raise_if_stopped()
    if planned.stage.needs != "processor":
        import torch

        # Bytes depend on the number of threads.
        torch.set_num_threads(job.worker.threads)
        if job.worker.deterministic and torch.cuda.is_available():
            from erl_pipeline.policies.hardware import add_in_fixed_order

            add_in_fixed_order()
    for earlier in job.repeated:
        _repeat(earlier, job.worker.run, resources, progress)
    if job.repeated:
        first, last = job.repeated[0], job.repeated[-1]
        progress.warn(
            f"{counted(len(job.repeated), 'update')} repeated from committed rollouts, from {first.title} to "
            f"{last.title}, and all gave the committed digests."
        )
    store.expect(job.expected)
    if job.folder is not None:
        began = datetime.now(UTC)
        shutil.rmtree(job.folder)  # An earlier try may have left files.
        job.folder.mkdir()
        with store.reading():
            result = _computed(
                planned, job.folder, resources, progress, job.state, job.following, may_write_later=True
            )
        writer = Writer(job.worker.run, planned.iteration, store.threads)
        unchanged_from = _unchanged_from(recipe, result)
        return draft(recipe, job.folder, writer, began, unchanged_from, result.late, **_told(result))
    with (
        store.reading(),
        store.create(recipe, run=job.worker.run, iteration=planned.iteration) as staging,
    ):
        result = _computed(planned, staging.path, resources, progress, job.state, job.following)
        return staging.commit(unchanged_from=_unchanged_from(recipe, result), **_told(result)).manifest


def _unchanged_from(recipe: Recipe, result: StageResult) -> str:
    return recipe.inputs[result.unchanged] if result.unchanged else ""


def _told(result: StageResult) -> Told:
    return Told(
        counters=result.counters,
        metrics=result.metrics,
        rows=result.rows,
        policy_version=result.policy_version,
        memory_version=result.memory_version,
        determinism=result.determinism,
        environment=result.environment,
    )


def _computed(
    planned: PlannedStage,
    folder: Path,
    resources: Resources,
    progress: StageProgress,
    state: bool,
    following: tuple[NextStage, ...] = (),
    may_write_later: bool = False,
) -> StageResult:
    recipe = planned.recipe
    return planned.stage.compute(
        StageCall(
            settings=planned.settings,
            inputs={name: resources.store.open(artifact_id) for name, artifact_id in recipe.inputs.items()},
            index=recipe.index,
            seed=recipe.seed,
            artifact_id=recipe.artifact_id,
            locations=planned.locations,
            folder=folder,
            progress=progress,
            resources=resources,
            state=state,
            following=following,
            may_write_later=may_write_later,
        )
    )


def _repeat(planned: PlannedStage, run: str, resources: Resources, progress: StageProgress) -> None:
    """Compute a stage again whose artifact is committed without the optimizer's state, and commit nothing."""
    store = resources.store
    progress.raise_if_stopped()
    with store.reading(), store.create(planned.recipe, run=run, iteration=planned.iteration) as staging:
        result = _computed(planned, staging.path, resources, progress, state=False)
        written = describe_files(staging.path, result.rows)
        require_committed(planned.title, store.open(planned.artifact_id), written, staging.path)


def outcome_of(planned: PlannedStage, manifest: Manifest, reused: bool, seconds: float) -> StageOutcome:
    """The outcome of a stage that took this many seconds."""
    return StageOutcome(
        stage=planned.stage.name,
        kind=planned.stage.output,
        iteration=planned.iteration,
        key=planned.key,
        artifact_id=manifest.artifact_id,
        reused=reused,
        seconds=seconds,
        making_seconds=(manifest.finished_at - manifest.started_at).total_seconds(),
        made_by=manifest.run,
        counters=manifest.counters,
        metrics=manifest.metrics,
    )


def places_for(needs: Needs, resources: ResourcesConfig) -> range | None:
    """The numbers, from 0, of the workers that may compute a stage; None: any worker. With `resources.groups`
    worker 0 samples and worker 1 trains."""
    if needs == "processor":
        return None
    if resources.groups is None:
        return range(resources.devices)
    return range(1) if needs == "sampling" else range(1, 2)


class WorkerDied(PipelineError):
    """The process that computed a stage ended without reporting a result."""


_LOOK_SECONDS = 0.1
MOST_DEATHS = 3
"""How many worker processes may die in one stage before the run gives up."""


def can_pass(error: BaseException) -> bool:
    """Whether an error of a stage may be gone when it is computed again: an engine or a store failed."""
    return isinstance(error, EngineError | StoreError) and not isinstance(
        error, DamagedArtifact | PrunedFileError
    )


def pause(seconds: float, stopped: Callable[[], bool]) -> None:
    """Wait before something that failed is tried again, but no longer than until the run is asked to stop."""
    due = time.monotonic() + seconds
    while (left := due - time.monotonic()) > 0 and not stopped():
        time.sleep(min(left, _LOOK_SECONDS))


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

    @property
    def shares_files(self) -> bool:
        """Whether stages can write into a folder of the driver's machine; then the driver commits."""
        ...

    def prepare(self) -> None:
        """Wait until stages can be begun; called before each one, so that no stage's time includes this."""
        ...

    def submit(self, job: StageJob) -> Future[Made]:
        """Begin a stage; the future gives what `compute` returns, or raises what the stage raised, or
        `WorkerDied`."""
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
    resources: ResourcesConfig
    listener: Listener
    stop: Event
    packages: tuple[str, ...] = ()
    nodes: NodesToFind = NO_NODES_TO_FIND
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
    lacks_for_groups: Callable[[SettingsT], str] = lambda _settings: (
        "it computes in one process; set runner: {type: prefect, task_runner: processes, workers: 2}"
    )
    """Why it cannot give sampling and training a worker process each (`resources.groups`), and what to do;
    empty if it can."""


class InProcessConfig(PluginSettings):
    """Stages are called in this process, one after the other."""

    type: Literal["in_process"] = "in_process"


class InProcessRunner:
    """Computes a stage in `submit` itself; the future is done when `submit` returns."""

    workers = 1
    retries = False
    shares_files: bool = True

    def __init__(self, resources: Resources, listener: Listener) -> None:
        self.resources = resources
        self._listener = listener

    def prepare(self) -> None:
        """Nothing has to start."""

    def submit(self, job: StageJob) -> Future[Made]:
        """Compute the stage now."""
        future: Future[Made] = Future()
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
