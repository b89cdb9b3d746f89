"""Running one stage: reuse what is committed, else compute and commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from storage.artifacts.manifest import Determinism, Manifest
from storage.artifacts.recipe import Recipe
from storage.errors import DamagedArtifact


@dataclass(frozen=True)
class Work:
    """What a stage's body did: numbers for the manifest, and the rows of each Parquet file it wrote."""

    counters: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    policy_version: str | None = None
    memory_version: str | None = None
    guarantee: Determinism = "bytes"


def run_stage(
    context: RunContext,
    recipe: Recipe,
    iteration: int | None,
    body: Callable[[Path], Work],
    total: int | None = None,
    unit: str = "",
    key: str = "",
) -> StageOutcome:
    """The committed artifact of `recipe`; if there is none, `body` writes its files into a folder first.

    Args:
        iteration: which iteration's ledger entry this is; None for stages before the first.
        total, unit: what the progress bar counts.
        key: tells apart several artifacts of one stage in one iteration (rollout shards).

    Raises OtherArtifact where the run is held to its ledger, which has another artifact.
    """
    context.require_as_recorded(recipe, iteration, key)
    started = time.perf_counter()
    context.listener.stage_started(recipe.stage, iteration, total, unit)
    context.raise_if_stopped()
    manifest = _whole(context, recipe)
    reused = manifest is not None
    if manifest is None:
        with context.store.create(recipe, run=context.run.name, iteration=iteration) as staging:
            work = body(staging.path)
            artifact = staging.commit(
                counters=dict(work.counters),
                metrics=dict(work.metrics),
                rows=dict(work.rows),
                policy_version=work.policy_version,
                memory_version=work.memory_version,
                determinism=work.guarantee,
            )
        manifest = artifact.manifest
    outcome = StageOutcome(
        stage=recipe.stage,
        iteration=iteration,
        artifact_id=manifest.artifact_id,
        reused=reused,
        seconds=time.perf_counter() - started,
        counters=manifest.counters,
        metrics=manifest.metrics,
    )
    context.record(outcome, recipe.kind, key)
    context.listener.stage_finished(outcome)
    return outcome


def _whole(context: RunContext, recipe: Recipe) -> Manifest | None:
    """The manifest of a committed, undamaged artifact; a damaged one is set aside and named."""
    try:
        if context.store.find(recipe.artifact_id, recipe.stage) is None:
            return None
        return context.store.open(recipe.artifact_id).manifest
    except DamagedArtifact as damage:
        context.listener.warn(f"{damage} It is set aside and made again.")
        context.store.discard_damaged(recipe.artifact_id)
        return None
