from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from erl_pipeline.objectives.advantages import group_advantages
from storage.errors import ConfigError
from tests.erl_pipeline.episodes.script import play


def advantages(rewards: Sequence[float], keys: Sequence[str], function: str) -> list[float]:
    row = play(["right a", "right a"])[0][0]
    return group_advantages([replace(row, reward=reward) for reward in rewards], keys, function)


def test_std_divides_by_the_unbiased_deviation_of_the_group() -> None:
    # Mean 0.5, deviations 0.5, -0.5, -0.5, 0.5: variance 4 * 0.25 / 3, standard deviation 0.57735.
    found = advantages([1.0, 0.0, 0.0, 1.0], ["a"] * 4, "std")
    assert found == pytest.approx([0.866024, -0.866024, -0.866024, 0.866024], abs=1e-6)


def test_mean_only_centres() -> None:
    assert advantages([1.0, 0.0, 0.0, 3.0], ["a"] * 4, "mean") == [0.0, -1.0, -1.0, 2.0]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    # 1 - (0 + 0 + 3) / 3, 0 - (1 + 0 + 3) / 3, the same, 3 - (1 + 0 + 0) / 3
    found = advantages([1.0, 0.0, 0.0, 3.0], ["a"] * 4, "rloo")
    assert found == pytest.approx([0.0, -4 / 3, -4 / 3, 8 / 3])


def test_groups_are_compared_apart_whatever_their_order() -> None:
    rewards = [1.0, 10.0, 0.0, 30.0]
    assert advantages(rewards, ["a", "b", "a", "b"], "mean") == [0.5, -10.0, -0.5, 10.0]


@pytest.mark.parametrize("function", ["std", "mean", "rloo"])
def test_a_lone_or_unanimous_group_has_exactly_no_advantage(function: str) -> None:
    # The mean of three times 0.1 is not 0.1 in floating point.
    assert advantages([1.0, 0.1, 0.1, 0.1], ["lone", "b", "b", "b"], function) == [0.0] * 4


def test_an_unknown_function_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="median: no such type of advantages; there are mean, rloo,"):
        advantages([1.0, 0.0], ["a", "a"], "median")
