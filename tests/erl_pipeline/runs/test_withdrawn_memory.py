"""A small run from whose reflections the memory is withdrawn."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from erl_pipeline.plan.plan import StageKey
from storage.artifacts.store import ArtifactStore
from tests.erl_pipeline.runs.small_runs import go, ids, small


def test_fewer_reflections_see_the_memory_until_none_does(tmp_path: Path) -> None:
    """Of four samples two see it in iteration 2, and none in iteration 3."""
    config = small(
        iterations=3,
        method={"type": "erl", "memory": {"withhold": 0.0, "withdrawal": {"first": 2, "last": 3}}},
        rollouts={"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 2},
    )
    go(config, tmp_path)
    places, artifacts = ids(tmp_path), ArtifactStore(str(tmp_path))

    def seen(iteration: int) -> set[str | None]:
        shard = artifacts.open(places[StageKey(iteration, "rollout_shard", "0000")])
        rows = pl.read_parquet(shard.path("trajectories.parquet"))
        return set(rows.filter(pl.col("role") == "reflection")["subgroup"])

    assert [seen(iteration) for iteration in (2, 3)] == [{"guided", "free"}, {"free"}]
