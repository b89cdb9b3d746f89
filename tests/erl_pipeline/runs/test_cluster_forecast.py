"""Inputs of simulations: a small run in a store, and the cluster files of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.config.loading import load_config
from erl_pipeline.plan.cluster import ClusterConfig, read_cluster
from erl_pipeline.runs.cluster_forecast import forecast_on_cluster
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from storage.errors import ConfigError
from storage.runs.run import RunStore
from tests.erl_pipeline.runs.small_runs import small

CONFIGS = Path(__file__).parents[3] / "configs"
HERE = ClusterConfig.model_validate({"nodes": {"here": {"workers": 1, "overhead_seconds": 0.0}}})


def test_stages_take_what_they_took_at_the_same_place_and_then_the_median(store: Path) -> None:
    entries = RunStore(str(store)).open("small").stages()
    two = forecast_on_cluster(small(), HERE, str(store))
    assert two.simulation.makespan == pytest.approx(sum(entry.seconds for entry in entries))
    assert (two.measurements.runs, two.measurements.medians) == ({"small": 18}, 0)

    # The third iteration, with 7 stages, and the last evaluation are in no run.
    three = forecast_on_cluster(small(iterations=3), HERE, str(store))
    assert (three.measurements.runs, three.measurements.medians) == ({"small": 18}, 8)


def test_another_seed_takes_what_the_nearest_run_took(store: Path) -> None:
    other = forecast_on_cluster(small(name="other", seed=1), HERE, str(store))
    assert other.measurements.runs == {"small": 18}
    assert EVALUATE.name in {ran.job.stage for ran in other.simulation.ran}


def test_nothing_is_known_in_an_empty_store(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"9 stages take on nodes\.here"):
        forecast_on_cluster(small(), HERE, str(tmp_path))


@pytest.mark.parametrize(("gpus", "tasks"), [(8, 64), (64, 512), (512, 4096)])
def test_the_clusters_of_the_repository_say_all_that_a_simulation_needs(
    gpus: int, tasks: int, tmp_path: Path
) -> None:
    words = [f"rollouts.tasks_per_iteration={tasks}", "rollouts.tasks_per_shard=8"]
    config = load_config(CONFIGS / "gpu_eight_qwen3_4b.yaml", words)
    cluster = read_cluster(CONFIGS / "clusters" / f"gpus_{gpus}.yaml")
    found = forecast_on_cluster(config, cluster, str(tmp_path), iterations=2)
    assert sum(use.devices for use in found.simulation.use.values()) == gpus
    assert found.measurements.runs == {}
    shards = [ran for ran in found.simulation.ran if ran.job.part]
    assert len(shards) == 2 * tasks / 8
    # 32 episodes of 3,500 tokens at 9,000 tokens/s.
    assert all(ran.seconds.computing == pytest.approx(112 / 9) for ran in shards)
