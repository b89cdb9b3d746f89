from __future__ import annotations

from datetime import UTC, datetime

from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.evaluation.run_difference import StageDifference, stage_differences
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe


def record(iteration: int, stage: str, made_from: str, key: str = "") -> StageRecord:
    recipe = Recipe(stage, 1, {"made_from": made_from}, {}, 0)
    now = datetime.now(UTC)
    manifest = Manifest(
        artifact_id=recipe.artifact_id,
        stage=stage,
        stage_version=1,
        run="r",
        iteration=iteration,
        inputs={},
        kind=recipe.kind,
        settings=dict(recipe.settings),
        index={},
        code={},
        seed=0,
        code_version="",
        packages={},
        environment={},
        started_at=now,
        finished_at=now,
        policy_version=None,
        memory_version=None,
        determinism="bytes",
        counters={},
        metrics={},
        files=[],
    )
    return StageRecord(iteration, stage, key, False, manifest)


def test_stages_are_shared_different_or_in_one_run_only() -> None:
    a = [
        record(0, "bootstrap", "x"),
        record(1, "rollout_shard", "x", "0000"),
        record(1, "rollout_shard", "y", "0001"),
        record(1, "index_memory", "x"),
        record(2, "evaluate_on_request", "x"),
    ]
    b = [
        record(0, "bootstrap", "x"),
        record(1, "rollout_shard", "x", "0000"),
        record(1, "rollout_shard", "z", "0001"),
        record(2, "update_policy", "x"),
    ]
    differences = stage_differences(a, b)
    assert [(each.iteration, each.stage, each.sharing) for each in differences] == [
        (0, "bootstrap", "shared"),
        (1, "rollout_shard", "differs"),
        (1, "index_memory", "only A"),
        (2, "update_policy", "only B"),
    ]
    shards: StageDifference = differences[1]
    assert shards.a[0] == shards.b[0]
    assert shards.a[1] != shards.b[1]
