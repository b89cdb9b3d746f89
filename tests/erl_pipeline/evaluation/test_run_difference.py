from __future__ import annotations

from pathlib import Path

from erl_pipeline.evaluation.iterations import (
    Measurement,
    common_columns,
    common_order,
    result_differences,
    stage_differences,
)
from erl_pipeline.plan.column import Column
from storage.artifacts.store import ArtifactStore
from tests.stage_records import stage_record


def test_stages_are_shared_different_or_in_one_run_only() -> None:
    a = [
        stage_record(0, "bootstrap", made_from="x"),
        stage_record(1, "rollout_shard", made_from="x", key="0000"),
        stage_record(1, "rollout_shard", made_from="y", key="0001"),
        stage_record(1, "index_memory", made_from="x"),
        stage_record(2, "evaluate_on_request", made_from="x"),
    ]
    b = [
        stage_record(0, "bootstrap", made_from="x"),
        stage_record(1, "rollout_shard", made_from="x", key="0000"),
        stage_record(1, "rollout_shard", made_from="z", key="0001"),
        stage_record(2, "update_policy", made_from="x"),
    ]
    differences = stage_differences(a, b)
    assert [(each.iteration, each.stage, each.sharing) for each in differences] == [
        (0, "bootstrap", "shared"),
        (1, "rollout_shard", "differs"),
        (1, "index_memory", "only A"),
        (2, "update_policy", "only B"),
    ]
    shards = differences[1]
    assert shards.a[0] == shards.b[0]
    assert shards.a[1] != shards.b[1]


def test_what_only_the_other_run_has_stands_behind_what_came_before_it_there() -> None:
    assert common_order(["roll", "learn", "test"], ["roll", "remember", "learn", "tune"]) == [
        "roll",
        "remember",
        "learn",
        "tune",
        "test",
    ]
    assert common_order(["learn"], ["measure", "learn"]) == ["measure", "learn"]


def test_results_are_the_columns_that_are_compared(tmp_path: Path) -> None:
    tokens = Column("generate_rollouts", "generated_tokens", "tokens", "", ",d", compare=True, adds_up=True)
    success = Column("evaluate", "greedy_success", "held-out", "", compare=True, interval=True)
    columns = common_columns([tokens, Column("update_policy", "loss", "loss", "")], [tokens, success])
    assert columns == [tokens, success]
    rates = {"greedy_success": 0.5, "greedy_success_low": 0.25, "greedy_success_high": 0.75}
    a = [
        stage_record(0, "evaluate", rates),
        stage_record(1, "generate_rollouts", {"generated_tokens": 10}),
        stage_record(2, "generate_rollouts", {"generated_tokens": 5}),
    ]
    results = result_differences(ArtifactStore(str(tmp_path)), a, a[:2], columns)
    assert [result.iteration for result in results] == [0, 1, 2]
    assert results[0].a == {tokens.name: Measurement(0.0), success.name: Measurement(0.5, 0.25, 0.75)}
    assert results[2].a == {tokens.name: Measurement(15.0)}
    assert results[2].b is None
    assert [result.paired for result in results] == [None, None, None]
