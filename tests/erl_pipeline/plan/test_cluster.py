"""Jobs made from the plan of a small run, and clusters that cannot run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.plan.cluster import ClusterConfig, jobs_of, read_cluster
from erl_pipeline.plan.forecast import Cost
from storage.errors import ConfigError
from tests.erl_pipeline.runs.planned_runs import plan

EVERYTHING = Cost(seconds=2.0, tokens=100.0, bytes=7.0)


def cluster(stages: dict[str, Any] | None = None, **groups: dict[str, Any]) -> ClusterConfig:
    return ClusterConfig.model_validate({"nodes": groups, "stages": stages or {}})


def jobs(of: ClusterConfig, measured: Cost = EVERYTHING) -> dict[str, Any]:
    made = plan(iterations=1)
    return {
        job.planned.title: job
        for job in jobs_of(made, of, {node.artifact_id: measured for node in made.nodes})
    }


def test_stages_generate_train_or_do_neither() -> None:
    made = jobs(cluster(one={}))
    assert {title: (job.work, job.devices, job.part) for title, job in made.items()} == {
        "prepare_tasks": ("other", 0, False),
        "bootstrap": ("training", 1, False),
        "evaluate of iteration 0": ("generation", 1, False),
        "rollout_shard 0000 of iteration 1": ("generation", 1, True),
        "rollout_shard 0001 of iteration 1": ("generation", 1, True),
        "generate_rollouts of iteration 1": ("other", 0, False),
        "index_memory of iteration 1": ("other", 0, False),
        "update_policy of iteration 1": ("training", 1, False),
        "build_distillation of iteration 1": ("other", 0, False),
        "fine_tune of iteration 1": ("training", 1, False),
        "evaluate of iteration 1": ("generation", 1, False),
    }


def test_what_the_file_says_of_a_stage_wins_over_what_was_measured() -> None:
    assumed = {"update_policy": {"tokens": 900.0, "bytes": 5.0, "devices": 2, "efficiency": 0.5}}
    update = jobs(cluster(assumed, one={"devices": 2}))["update_policy of iteration 1"]
    assert (update.tokens, update.bytes, update.devices, update.seconds) == (900.0, 5.0, 2, 2.0)
    [group] = cluster(one={"training_tokens_per_second": 100}).nodes.values()
    assert update.seconds_on(group) == 9.0


def test_a_stage_that_no_node_computes_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"no node computes training, the work of bootstrap; add it to nodes\.one"
    ):
        jobs(cluster(one={"computes": ["generation", "other"]}))


def test_more_devices_than_there_are_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"stages\.fine_tune\.devices: 16, but nodes\.big, .* has 8 \(2 x 4\)"
    ):
        jobs(cluster({"fine_tune": {"devices": 16}}, small={}, big={"count": 2, "devices": 4}))


def test_a_stage_of_which_nothing_is_known_is_refused() -> None:
    said = ("prepare_tasks", "generate_rollouts", "index_memory", "evaluate")
    trainer = {"training_tokens_per_second": 100.0}
    with pytest.raises(ConfigError) as refused:
        jobs(cluster({name: {"seconds": 1.0} for name in said}, one=trainer), Cost())
    assert str(refused.value) == (
        "it is not known how long 5 stages take on nodes.one, since no run that trains this model has an "
        "artifact of them; set "
        "stages.bootstrap.tokens, stages.rollout_shard.seconds, stages.update_policy.tokens, "
        "stages.build_distillation.seconds, stages.fine_tune.tokens"
    )


def test_an_assumption_on_a_stage_that_the_plan_has_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stages\.fine_tone: the plan has no such stage"):
        jobs(cluster({"fine_tone": {"seconds": 1.0}}, one={}))


def test_wrong_settings_are_named_with_their_node_and_line(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes:\n  trainers: {count: 0, gpus: 8}\n")
    with pytest.raises(ConfigError) as refused:
        read_cluster(file)
    assert "nodes.trainers.count" in str(refused.value)
    assert "nodes.trainers.gpus" in str(refused.value)
    assert "line 2" in str(refused.value)


def test_the_state_of_the_optimizer_counts_where_it_is_committed() -> None:
    made = plan(iterations=4)
    known = {node.artifact_id: EVERYTHING for node in made.nodes}
    of = cluster({"update_policy": {"state_bytes": 90.0}, "fine_tune": {"state_bytes": 90.0}}, one={})

    def with_state(every: int) -> list[str]:
        return [each.planned.title for each in jobs_of(made, of, known, every) if each.state_bytes]

    assert len(with_state(1)) == 8
    assert with_state(2) == ["fine_tune of iteration 2", "fine_tune of iteration 4"]
