"""Probabilities of buckets, worked out by hand for K = 8, and the draws that follow from them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from erl_pipeline.config.replay import BucketSettings
from erl_pipeline.stages.training.replay.draw import bucket_probabilities, draw_by_bucket, draw_uniformly

COUNTS = BucketSettings()
RATES = BucketSettings(sigma_unit="rate")


def rounded(buckets: list[int], settings: BucketSettings = COUNTS) -> list[float]:
    return [round(share, 4) for share in bucket_probabilities(buckets, 8, settings).values()]


def test_buckets_have_the_weights_of_a_normal_distribution_over_counts() -> None:
    assert rounded([1, 2, 3, 4, 5, 6, 7]) == [0.0044, 0.054, 0.242, 0.3991, 0.242, 0.054, 0.0044]


def test_only_buckets_that_hold_a_task_share_the_probability() -> None:
    assert rounded([1, 4, 7]) == [0.0109, 0.9783, 0.0109]


def test_over_rates_all_buckets_are_nearly_alike() -> None:
    shares = rounded([1, 2, 3, 4, 5, 6, 7], RATES)
    assert (min(shares), max(shares)) == (0.1373, 0.1473)


def tasks(**buckets: int) -> dict[int, list[str]]:
    """`b4=2`: two tasks of bucket 4."""
    return {int(name[1:]): [f"{name}-{i}" for i in range(count)] for name, count in buckets.items()}


@pytest.mark.parametrize("seed", range(20))
def test_a_bucket_that_overflows_leaves_its_draws_to_the_others(seed: int) -> None:
    drawn = draw_by_bucket(tasks(b1=3, b4=2, b7=1), 5, 8, COUNTS, random.Random(seed))
    ids = [task.task_id for task in drawn]
    assert len(ids) == len(set(ids)) == 5
    # Nearly all draws fall on bucket 4, which has two tasks.
    assert Counter(task.bucket for task in drawn)[4] == 2
    assert {round(task.probability or 0, 4) for task in drawn if task.bucket == 4} == {0.9783}


def test_there_are_no_more_draws_than_tasks() -> None:
    drawn = draw_by_bucket(tasks(b1=1, b3=2), 8, 8, COUNTS, random.Random(0))
    assert sorted(task.task_id for task in drawn) == ["b1-0", "b3-0", "b3-1"]


def test_a_mean_far_from_every_task_still_draws() -> None:
    narrow = BucketSettings(mean=1.0, sigma=0.01)
    assert [task.task_id for task in draw_by_bucket(tasks(b7=1), 1, 8, narrow, random.Random(0))] == ["b7-0"]
    both = draw_by_bucket(tasks(b1=1, b7=1), 2, 8, narrow, random.Random(0))
    assert sorted(task.task_id for task in both) == ["b1-0", "b7-0"]


def test_uniform_draws_take_each_task_alike() -> None:
    counted: Counter[str] = Counter()
    for seed in range(600):
        counted.update(task.task_id for task in draw_uniformly(tasks(b1=1, b4=2), 1, random.Random(seed)))
    assert set(counted) == {"b1-0", "b4-0", "b4-1"}
    assert all(150 < count < 250 for count in counted.values())


def test_the_seed_decides() -> None:
    draws = [draw_by_bucket(tasks(b3=9, b4=9), 4, 8, COUNTS, random.Random(3)) for _ in range(2)]
    assert draws[0] == draws[1]
    assert draws[0] != draw_by_bucket(tasks(b3=9, b4=9), 4, 8, COUNTS, random.Random(4))
