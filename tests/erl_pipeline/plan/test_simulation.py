"""Plans simulated on nodes, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.cluster import ClusterConfig, Job, split_parts
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.simulation import GroupUse, simulate
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from storage.artifacts.recipe import Recipe


def never(_call: StageCall[Settings]) -> StageResult:
    raise AssertionError("a simulation computes nothing")


def job(name: str, seconds: float, *inputs: str, devices: int = 1, size: float = 0.0, **more: Any) -> Job:
    """A stage `name` that makes the artifact `name`; with `part`, one of several that make one thing."""
    stage = Stage(name, 1, "table", Settings, never, part_of="whole" if more.pop("part", False) else "")
    recipe = Recipe(name, 1, {}, {each: each for each in inputs}, 0)
    return Job(
        planned=PlannedStage(stage, Settings(), recipe, None, "", name),
        work=more.pop("work", "other"),
        devices=devices,
        seconds=seconds,
        tokens=more.pop("tokens", None),
        bytes=size,
        **more,
    )


def cluster(**groups: Mapping[str, Any]) -> ClusterConfig:
    return ClusterConfig.model_validate({"nodes": groups})


def test_two_stages_share_one_device_and_end_after_the_sum_of_both() -> None:
    found = simulate([job("a", 3), job("b", 5)], cluster(one={"devices": 1}))
    assert found.makespan == 8
    assert found.use == {"one": GroupUse(devices=1, computing=1.0, waiting=0.0, idle=0.0)}
    assert [each.job.stage for each in found.critical] == ["a", "b"]


def test_on_two_devices_they_end_after_the_longer_one() -> None:
    found = simulate([job("a", 3), job("b", 5)], cluster(one={"devices": 2}))
    assert found.makespan == 5
    # 8 of 10 device-seconds are computed.
    assert found.use["one"].idle == pytest.approx(0.2)
    assert [each.job.stage for each in found.critical] == ["b"]


def test_workers_bound_the_stages_of_a_node_whatever_devices_it_has() -> None:
    assert simulate([job("a", 3), job("b", 5)], cluster(one={"devices": 2, "workers": 1})).makespan == 8


def test_a_stage_waits_for_its_inputs() -> None:
    found = simulate([job("a", 3), job("b", 5), job("c", 1, "a", "b")], cluster(one={"devices": 4}))
    assert found.makespan == 6
    assert [each.job.stage for each in found.critical] == ["b", "c"]


def test_what_needs_no_device_is_computed_beside_what_does() -> None:
    jobs = [job("a", 3), job("memory", 2, devices=0)]
    assert simulate(jobs, cluster(one={"devices": 1})).makespan == 3


def test_transfers_add_bytes_divided_by_bandwidth() -> None:
    # First 3 s, and 200 bytes up at 100 bytes/s. Then 200 bytes down at 50 bytes/s, 5 s, and 100 bytes up.
    jobs = [job("a", 3, size=200, work="generation"), job("b", 5, "a", size=100, work="training")]
    links = {"upload_bytes_per_second": 100, "download_bytes_per_second": 50}
    found = simulate(
        jobs,
        cluster(
            first={"computes": ["generation"], **links},
            other={"computes": ["training"], **links},
        ),
    )
    assert found.makespan == 3 + 2 + 4 + 5 + 1
    assert (found.traffic.uploaded, found.traffic.downloaded, found.traffic.between) == (300, 200, 0)
    # Each waits for its own transfers: 2 of 15 seconds, and 5 of 15.
    assert found.use["first"].waiting == pytest.approx(2 / 15)
    assert found.use["other"].waiting == pytest.approx(5 / 15)


def test_what_a_node_has_made_or_got_is_not_moved_to_it_again() -> None:
    jobs = [job("a", 3, size=200), job("b", 5, "a"), job("c", 5, "a")]
    found = simulate(jobs, cluster(one={"download_bytes_per_second": 50}))
    assert found.makespan == 13
    assert found.traffic.total == 0


def test_a_node_gets_an_artifact_from_another_one_where_they_are_linked() -> None:
    jobs = [job("a", 3, size=200, work="generation"), job("b", 5, "a", work="training")]
    found = simulate(
        jobs,
        cluster(
            first={"computes": ["generation"]},
            other={
                "computes": ["training"],
                "between_bytes_per_second": 100,
                "download_bytes_per_second": 1,
            },
        ),
    )
    assert found.makespan == 3 + 2 + 5
    assert (found.traffic.between, found.traffic.downloaded) == (200, 0)


def test_rates_of_tokens_take_the_place_of_measured_seconds() -> None:
    jobs = [
        job("sample", 100, tokens=600, work="generation"),
        job("train", 100, "sample", tokens=400, work="training"),
    ]
    rates = {"generation_tokens_per_second": 300, "training_tokens_per_second": 100}
    assert simulate(jobs, cluster(one=rates)).makespan == 2 + 4
    assert simulate(jobs, cluster(one={"speed": 10})).makespan == 20


def test_several_devices_together_lose_what_efficiency_says() -> None:
    # 800 tokens, on 4 devices with 100 tokens/s each, at half their rate.
    training = job("train", 0, devices=4, tokens=800, work="training", efficiency=0.5)
    rates = {"training_tokens_per_second": 100}
    assert simulate([training], cluster(one={"devices": 4, **rates})).makespan == 4
    over_two_nodes = simulate([training], cluster(two={"count": 2, "devices": 2, **rates}))
    assert over_two_nodes.makespan == 4
    assert over_two_nodes.ran[0].nodes == ("two-0", "two-1")


def lagged(lag: int) -> list[Job]:
    """Four iterations of 4 s of generation and 4 s of training; iteration i samples from the checkpoint of
    iteration i - 1 - lag."""
    jobs = [job("checkpoint 0", 0)]
    for number in range(1, 5):
        sampled_from = f"checkpoint {max(0, number - 1 - lag)}"
        jobs.append(job(f"rollouts {number}", 4, sampled_from, work="generation"))
        jobs.append(
            job(f"checkpoint {number}", 4, f"rollouts {number}", f"checkpoint {number - 1}", work="training")
        )
    return jobs


def test_lag_of_one_lets_generation_and_training_overlap_on_two_devices() -> None:
    two = cluster(one={"devices": 2})
    assert simulate(lagged(0), two).makespan == 4 * 8
    # The last training ends one iteration after the last generation: 4 + 4 x 4.
    assert simulate(lagged(1), two).makespan == 20
    assert simulate(lagged(1), cluster(one={"devices": 1})).makespan == 32


def test_a_worker_begins_once_and_each_stage_has_its_overhead() -> None:
    jobs = [job("a", 3), job("b", 5)]
    one = cluster(one={"devices": 1, "start_seconds": 10})
    assert simulate(jobs, one).makespan == 10 + 3 + 5
    assert simulate(jobs, one, overhead_seconds=0.5).makespan == 10 + 3.5 + 5.5
    two = cluster(one={"devices": 2, "workers": 2, "start_seconds": 10})
    assert simulate(jobs, two).makespan == 10 + 5


def test_shards_half_as_large_are_generated_on_two_devices_in_half_the_time() -> None:
    whole = [job("shard", 8, tokens=80, work="generation", part=True)]
    halves = [job(f"shard {number}", 8, tokens=80, work="generation", part=True) for number in range(2)]
    two = cluster(one={"devices": 2})
    assert simulate(whole, two).makespan == 8
    assert simulate(split_parts(halves, 0.5), two).makespan == 4


def test_many_shards_are_spread_over_all_nodes() -> None:
    # 256 shards of 2 s on 64 devices are 4 rounds.
    shards = [job(f"shard {number}", 2, work="generation") for number in range(256)]
    found = simulate(shards, cluster(many={"count": 8, "devices": 8}))
    assert found.makespan == 8
    assert found.use["many"].computing == pytest.approx(1.0)


def trained(name: str, checkpoint: str, *inputs: str, **more: Any) -> Job:
    """A training of 5 s that makes a checkpoint of 100 bytes."""
    made = job(name, 5, *inputs, work="training", size=100, **more)
    stage = replace(made.planned.stage, output="checkpoint")
    recipe = replace(made.planned.recipe, inputs={**made.planned.recipe.inputs, "checkpoint": checkpoint})
    return replace(made, planned=replace(made.planned, stage=stage, recipe=recipe))


def test_a_trainer_that_stays_starts_once() -> None:
    jobs = [job("base", 0), trained("a", "base"), trained("b", "a"), trained("c", "b")]
    starts = {"trainer_start_seconds": 10}
    assert simulate(jobs, cluster(one=starts)).makespan == 3 * (10 + 5)
    stays = simulate(jobs, cluster(one={**starts, "trainer_wake_seconds": 1}))
    assert stays.makespan == 10 + 3 * 5 + 2 * 1


def test_weights_are_handed_over_once_to_what_samples_from_them() -> None:
    def sampled(name: str, checkpoint: str) -> Job:
        made = job(name, 4, work="generation")
        recipe = replace(made.planned.recipe, inputs={"checkpoint": checkpoint})
        return replace(made, planned=replace(made.planned, recipe=recipe))

    # The state of the optimizer is not handed over.
    jobs = [trained("a", "base", state_bytes=900), sampled("one", "a"), sampled("two", "a")]
    found = simulate(jobs, cluster(one={"handover_bytes_per_second": 50}))
    assert found.makespan == 5 + (2 + 4) + 4
    assert [each.seconds.hand_over for each in found.ran] == [0, 2, 0]


def test_tokens_are_scored_before_they_are_trained_on() -> None:
    update = job("update", 0, tokens=800, work="training", devices=2, scored_tokens=400)
    rates = {"training_tokens_per_second": 100, "scoring_tokens_per_second": 50}
    found = simulate([update], cluster(one={"devices": 2, **rates}))
    assert (found.ran[0].seconds.scoring, found.ran[0].seconds.computing) == (4, 4)
    assert found.use["one"].computing == 1.0


def test_a_stage_writes_and_commits_go_on_beside_the_next_ones() -> None:
    # Each writes its 100 bytes for 1 s. They are committed for 2 s each, the last one alone.
    jobs = [job("base", 0), trained("a", "base"), trained("b", "a")]
    rates = {"write_bytes_per_second": 100, "commit_bytes_per_second": 50}
    found = simulate(jobs, cluster(one=rates))
    assert [each.end for each in found.ran] == [0, 6, 12]
    assert found.makespan == 12 + 2


def test_the_state_of_the_optimizer_is_written_beside_the_next_stages() -> None:
    # Each has 100 bytes, which it writes for 1 s, and 300 of state: copied for 1 s, written for 3 s beside
    # the next stage, and hashed with the others for 2 s.
    jobs = [job("base", 0), trained("a", "base", state_bytes=300), trained("b", "a", state_bytes=300)]
    rates = {"write_bytes_per_second": 100, "commit_bytes_per_second": 200}
    assert [each.end for each in simulate(jobs, cluster(one=rates)).ran] == [0, 9, 18]
    found = simulate(jobs, cluster(one={**rates, "state_bytes_per_second": 300}))
    assert [each.end for each in found.ran] == [0, 7, 14]
    assert found.makespan == 14 + 3 + 2


def test_a_training_waits_while_two_checkpoints_are_not_committed() -> None:
    # a is committed from 5 s to 25 s, b to 45 s: c begins when a is, instead of at 10 s.
    jobs = [job("base", 0), trained("a", "base"), trained("b", "a"), trained("c", "b")]
    found = simulate(jobs, cluster(one={"commit_bytes_per_second": 5}))
    assert [each.seconds.waiting_for_commits for each in found.ran] == [0, 0, 0, 15]
    assert [each.end for each in found.ran] == [0, 5, 10, 30]
    assert found.makespan == 5 + 3 * 20
