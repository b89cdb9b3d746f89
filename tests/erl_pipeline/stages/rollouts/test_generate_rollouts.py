"""Further shards, played while too few groups have a signal."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.stages.rollouts import generate_rollouts
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from tests.erl_pipeline.runs import planned_runs
from tests.erl_pipeline.runs.small_runs import SMALL, go, ids, small


def test_further_shards_read_those_before_them() -> None:
    """Four tasks in shards of two, and at most three times as many."""
    made = planned_runs.plan("rollouts.refill=3", "iterations=1")
    assert len(planned_runs.inputs(made, 1, "generate_rollouts")) == 6
    assert "earlier-0000" not in planned_runs.inputs(made, 1, "rollout_shard", "0001")
    assert planned_runs.inputs(made, 1, "rollout_shard", "0003") == {
        **planned_runs.inputs(made, 1, "rollout_shard", "0000"),
        "earlier-0000": "rollout_shard 0000 of iteration 1",
        "earlier-0001": "rollout_shard 0001 of iteration 1",
        "earlier-0002": "rollout_shard 0002 of iteration 1",
    }
    assert planned_runs.ids(planned_runs.plan("rollouts.refill=1")) == planned_runs.ids(planned_runs.plan())


def test_tasks_that_a_method_draws_itself_are_not_refilled() -> None:
    with pytest.raises(ConfigError, match="refill: 2; the tasks of an iteration are chosen beforehand"):
        planned_runs.plan("method=rlvr", "replay=on", "rollouts.refill=2")


def test_shards_are_played_until_enough_groups_have_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of one task each. The first and the third have a signal, and two are wanted."""
    found = iter([1, 0, 1])
    monkeypatch.setattr(generate_rollouts, "signal_groups", lambda _rows: next(found))
    config = small(
        iterations=1, method="rlvr", rollouts={**SMALL["rollouts"], "refill": 3}, evaluation={"tasks": 1}
    )
    go(config, tmp_path)
    store, places = ArtifactStore(str(tmp_path)), ids(tmp_path)
    shards = [store.open(places[StageKey(1, "rollout_shard", f"{number:04d}")]) for number in range(6)]
    tables = [pl.read_parquet(shard.path("trajectories.parquet")) for shard in shards]
    assert [table.height for table in tables] == [2, 2, 2, 0, 0, 0]
    assert pl.concat(tables)["task_id"].n_unique() == 3
    counters = store.open(places[StageKey(1, "generate_rollouts", "")]).manifest.counters
    assert (counters["groups_with_signal"], counters["trajectories"]) == (2, 6)
    generated = [shard.manifest.counters["generated_tokens"] for shard in shards]
    assert counters["generated_tokens"] == sum(generated[:3]) > 0
