"""Records of stages made by hand, without a store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from erl_pipeline.evaluation.history import StageRecord
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from tests.stage_versions import find_stages

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
KINDS = {stage.name: stage.output for stage in find_stages(["erl_pipeline.stages", "erl_pipeline.methods"])}


def stage_record(
    iteration: int,
    stage: str,
    numbers: Mapping[str, float] | None = None,
    *,
    made_from: str = "",
    checkpoint: str | None = None,
    key: str = "",
    seconds: float = 1.0,
) -> StageRecord:
    """A record with these metrics, of an artifact whose id depends on the stage, `made_from` and the
    checkpoint that it reads."""
    inputs = {} if checkpoint is None else {"checkpoint": checkpoint}
    recipe = Recipe(stage, 1, {"made_from": made_from}, inputs, 0, kind=KINDS[stage])
    manifest = Manifest(
        artifact_id=recipe.artifact_id,
        stage=stage,
        stage_version=1,
        kind=recipe.kind,
        run="r",
        iteration=iteration,
        inputs=inputs,
        settings=dict(recipe.settings),
        index={},
        code={},
        seed=0,
        code_version="",
        packages={},
        environment={},
        started_at=NOON,
        finished_at=NOON + timedelta(seconds=seconds),
        policy_version=None,
        memory_version=None,
        determinism="bytes",
        counters={},
        metrics=dict(numbers or {}),
        files=[],
    )
    return StageRecord(iteration, stage, key, False, manifest)
