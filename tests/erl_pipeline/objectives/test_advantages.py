from __future__ import annotations

from typing import Literal

import pytest

from erl_pipeline.objectives.advantages import GroupCount, count_groups, group_advantages


def test_std_divides_by_the_unbiased_deviation_of_the_group() -> None:
    # Mean 0.5, deviations 0.5, -0.5, -0.5, 0.5: variance 4 * 0.25 / 3, standard deviation 0.57735.
    advantages = group_advantages([1.0, 0.0, 0.0, 1.0], ["a"] * 4, "std")
    assert advantages == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-6)


def test_mean_only_centres() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 3.0], ["a"] * 4, "mean") == [0.0, -1.0, -1.0, 2.0]


def test_groups_are_compared_apart_whatever_their_order() -> None:
    rewards = [1.0, 10.0, 0.0, 30.0]
    assert group_advantages(rewards, ["a", "b", "a", "b"], "mean") == [0.5, -10.0, -0.5, 10.0]


@pytest.mark.parametrize("normalization", ["std", "mean"])
def test_a_lone_or_unanimous_group_has_exactly_no_advantage(
    normalization: Literal["std", "mean"],
) -> None:
    # The mean of three times 0.1 is not 0.1 in floating point.
    rewards = [1.0, 0.1, 0.1, 0.1]
    assert group_advantages(rewards, ["lone", "b", "b", "b"], normalization) == [0.0] * 4


def test_the_groups_that_tell_nothing_are_counted() -> None:
    """Rewards differ in group `a`, are equal in `b`, and `c` has only one."""
    assert count_groups([1.0, 0.0, 0.5, 0.5, 1.0], ["a", "a", "b", "b", "c"]) == GroupCount(3, 2)
    assert count_groups([], []) == GroupCount(0, 0)
