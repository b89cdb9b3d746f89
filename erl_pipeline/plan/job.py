"""One planned stage in the form that a worker process gets, how it is computed and committed, and how that is
reported: to a progress display, a log, or nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.stage import Progress, Resources, StageCall, WorkerSettings
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.errors import Interrupted


@dataclass(frozen=True)
class StageJob:
    """All that another process needs to compute a stage: the stage and where the store is."""

    planned: PlannedStage
    worker: WorkerSettings


@dataclass(frozen=True)
class StageOutcome:
    """A committed artifact and the numbers of its manifest. `seconds` is wall time, small when `reused`.

    `made_by` is the run that made a reused artifact.
    """

    stage: str
    kind: ArtifactKind
    iteration: int | None
    key: str
    artifact_id: str
    reused: bool
    seconds: float
    made_by: str
    counters: Mapping[str, float]
    metrics: Mapping[str, float]


def compute(job: StageJob, resources: Resources, progress: Progress) -> Manifest:
    """Compute a stage from its inputs, commit its artifact, and return the manifest.

    If another process was first, its artifact is kept. Raises what the stage raises, `Interrupted` when the
    run was asked to stop, and StoreError when the store cannot be read or written.
    """
    planned = job.planned
    stage, recipe, store = planned.stage, planned.recipe, resources.store
    progress.raise_if_stopped()
    if stage.needs == "device":
        _use_threads(job.worker.threads)
    with (
        store.reading(),
        store.create(recipe, run=job.worker.run, iteration=planned.iteration) as staging,
    ):
        inputs = {name: store.open(artifact_id) for name, artifact_id in recipe.inputs.items()}
        result = stage.compute(
            StageCall(
                settings=planned.settings,
                inputs=inputs,
                index=recipe.index,
                seed=recipe.seed,
                artifact_id=recipe.artifact_id,
                locations=planned.locations,
                folder=staging.path,
                progress=progress,
                resources=resources,
            )
        )
        return staging.commit(
            counters=dict(result.counters),
            metrics=dict(result.metrics),
            rows=dict(result.rows),
            policy_version=result.policy_version,
            memory_version=result.memory_version,
            determinism=result.determinism,
            unchanged_from=recipe.inputs[result.unchanged] if result.unchanged else "",
        ).manifest


def _use_threads(threads: int) -> None:
    """Compute with the number of threads that the run is configured with: bytes depend on it."""
    import torch

    torch.set_num_threads(threads)


def outcome_of(planned: PlannedStage, manifest: Manifest, reused: bool, started: float) -> StageOutcome:
    """The outcome of a stage; `started` is `time.perf_counter()` at its beginning."""
    return StageOutcome(
        stage=planned.stage.name,
        kind=planned.stage.output,
        iteration=planned.iteration,
        key=planned.key,
        artifact_id=manifest.artifact_id,
        reused=reused,
        seconds=time.perf_counter() - started,
        made_by=manifest.run,
        counters=manifest.counters,
        metrics=manifest.metrics,
    )


class Listener(Protocol):
    """Takes reports on stages, which it knows by their titles, such as `fine_tune of iteration 3`. May be
    called from any thread."""

    def stage_started(self, title: str) -> None:
        """The computation of a stage has begun."""
        ...

    def counting(self, title: str, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""
        ...

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """`amount` more units are done."""
        ...

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long; `detail` is the latest news of it."""
        ...

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """The artifact is committed and recorded."""
        ...

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""
        ...


class NullListener:
    """A listener that shows nothing."""

    def stage_started(self, title: str) -> None:
        """Not shown."""

    def counting(self, title: str, total: int, unit: str) -> None:
        """Not shown."""

    def advanced(self, title: str, amount: int, numbers: dict[str, float]) -> None:
        """Not shown."""

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        """Not shown."""

    def stage_finished(self, title: str, outcome: StageOutcome) -> None:
        """Not shown."""

    def warn(self, message: str) -> None:
        """Not shown."""


class StageProgress:
    """Reports the progress of one stage to a listener."""

    def __init__(self, title: str, listener: Listener, stop: threading.Event) -> None:
        self._title = title
        self._listener = listener
        self._stop = stop

    def begin(self, total: int, unit: str) -> None:
        """The stage will count `total` units, such as episodes."""
        self._listener.counting(self._title, total, unit)

    def advance(self, amount: int, **numbers: float) -> None:
        """`amount` more units are done; `numbers` are what is known of them so far."""
        self._listener.advanced(self._title, amount, numbers)

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        """The stage has waited for `what` this long."""
        self._listener.waiting(self._title, what, seconds, detail)

    def warn(self, message: str) -> None:
        """Something that a user should know, and that stops nothing."""
        self._listener.warn(message)

    def raise_if_stopped(self) -> None:
        """Raise `Interrupted` when the run was asked to stop."""
        if self._stop.is_set():
            raise Interrupted
