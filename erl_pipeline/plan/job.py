"""One planned stage in the form that a worker process gets, and how it is computed and committed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.resources import Resources, WorkerSettings
from erl_pipeline.plan.stage import Progress, StageCall
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind


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
            environment=dict(result.environment),
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
