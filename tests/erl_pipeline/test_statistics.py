from __future__ import annotations

import pytest

from erl_pipeline.statistics import (
    mean_over_tasks,
    paired_difference,
    pass_at_k,
    sampled_success_rate,
    student_quantile,
    success_rate,
    wilson_interval,
)


def test_success_rate_of_eight_in_ten_has_the_textbook_wilson_interval() -> None:
    estimate = success_rate([True] * 8 + [False] * 2)
    assert estimate.value == 0.8
    assert (estimate.low, estimate.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert (estimate.tasks, estimate.attempts) == (10, 10)


def test_no_success_in_ten_still_leaves_room_above() -> None:
    # z^2 / (n + z^2) = 3.8415 / 13.8415
    low, high = wilson_interval(0.0, 10)
    assert low == 0.0
    assert high == pytest.approx(0.27753, abs=1e-5)
    low, high = wilson_interval(1.0, 10)
    assert low == pytest.approx(0.72247, abs=1e-5)
    assert high == 1.0


def test_intervals_need_outcomes() -> None:
    with pytest.raises(ValueError, match="without outcomes"):
        success_rate([])
    with pytest.raises(ValueError, match="each with at least one attempt"):
        sampled_success_rate({"lake-1": [True], "lake-2": []})


def test_attempts_that_agree_within_each_task_count_as_fewer() -> None:
    # Residuals 1, -1, 0: variance 3/2 * 2/36 = 1/12, hence 0.25 * 12 = 3 independent attempts out of 6.
    estimate = sampled_success_rate({"a": [True, True], "b": [False, False], "c": [True, False]})
    assert estimate.value == 0.5
    assert (estimate.low, estimate.high) == pytest.approx(wilson_interval(0.5, 3))
    assert (estimate.tasks, estimate.attempts) == (3, 6)


def test_tasks_of_equal_difficulty_lose_nothing_and_never_count_more_than_was_made() -> None:
    estimate = sampled_success_rate({"a": [True, False], "b": [False, True]})
    assert (estimate.low, estimate.high) == wilson_interval(0.5, 4)


def test_unanimous_outcomes_count_once_for_each_task() -> None:
    estimate = sampled_success_rate({"a": [False] * 4, "b": [False] * 4})
    assert (estimate.low, estimate.high) == wilson_interval(0.0, 2)


def test_pass_at_k_counts_the_draws_that_miss_every_success() -> None:
    assert pass_at_k(4, 1, 2) == 0.5  # 1 - C(3, 2) / C(4, 2) = 1 - 3/6
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)  # 1 - 1/6
    assert pass_at_k(4, 3, 2) == 1.0
    assert pass_at_k(4, 0, 4) == 0.0
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(4, 1, 5)


def test_paired_difference_counts_what_changed() -> None:
    tasks = [f"lake-{number}" for number in range(10)]
    before = {task: number < 3 for number, task in enumerate(tasks)}
    after = {task: number > 1 for number, task in enumerate(tasks)}
    difference = paired_difference(before, after)
    assert (difference.gained, difference.lost, difference.tasks) == (7, 2, 10)
    assert difference.difference == 0.5
    # Adjusted proportions 8/12 and 3/12: centre 5/12, variance (11/12 - 25/144) / 12 = 107/1728.
    assert difference.low == pytest.approx(5 / 12 - 1.959964 * (107 / 1728) ** 0.5)
    assert difference.high == pytest.approx(5 / 12 + 1.959964 * (107 / 1728) ** 0.5)
    # At most two of nine coins show one side, for both sides: 2 * (1 + 9 + 36) / 512.
    assert difference.p_value == pytest.approx(92 / 512)


def test_checkpoints_that_agree_everywhere_do_not_differ() -> None:
    difference = paired_difference({"a": True, "b": False}, {"a": True, "b": False})
    assert (difference.difference, difference.p_value) == (0.0, 1.0)
    assert difference.low == -difference.high < 0


def test_paired_difference_refuses_different_tasks() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference({"a": True}, {"b": True})


def test_a_mean_over_tasks_takes_its_variance_between_tasks() -> None:
    mean = mean_over_tasks({"a": [0.5, -0.5], "b": [1.0, 1.0], "c": [-1.0]})
    assert (mean.value, mean.tasks, mean.count) == pytest.approx((0.2, 3, 5))
    # Residuals 0 - 2 * 0.2, 2 - 2 * 0.2 and -1 - 0.2; squares add up to 0.16 + 2.56 + 1.44 = 4.16.
    half_width = 4.3027 * (3 / 2 * 4.16) ** 0.5 / 5
    assert mean.low == pytest.approx(0.2 - half_width, abs=1e-4)
    assert mean.high == pytest.approx(0.2 + half_width, abs=1e-4)


def test_one_task_has_a_mean_and_no_interval() -> None:
    mean = mean_over_tasks({"a": [1.0, 0.0]})
    assert (mean.value, mean.low, mean.high) == (0.5, None, None)
    with pytest.raises(ValueError, match="at least one number"):
        mean_over_tasks({"a": []})


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_student_quantile_equals_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, abs=5e-5)
