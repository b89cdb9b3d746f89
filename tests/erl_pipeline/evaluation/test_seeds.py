from __future__ import annotations

import pytest

from erl_pipeline.comparison.measures import across_seeds, holm, seed_difference


def test_three_seeds_have_a_mean_a_spread_and_an_interval() -> None:
    summary = across_seeds([0.7, 0.8, 0.9])
    assert summary.mean == pytest.approx(0.8)
    assert summary.sd == pytest.approx(0.1)
    # 4.3027 * 0.1 / sqrt(3)
    assert (summary.low, summary.high) == pytest.approx((0.8 - 0.24842, 0.8 + 0.24842), abs=1e-5)


def test_one_seed_says_nothing_about_the_spread() -> None:
    summary = across_seeds([0.7])
    assert (summary.mean, summary.sd, summary.low, summary.high) == (0.7, None, None, None)


def test_a_difference_is_taken_seed_by_seed() -> None:
    difference = seed_difference([0.5, 0.7, 0.9], [0.4, 0.4, 0.4])
    assert difference.by_seed == pytest.approx([0.1, 0.3, 0.5])
    assert difference.summary.mean == pytest.approx(0.3)
    # sd 0.2, t = 0.3 / (0.2 / sqrt(3)) = 2.5981 with two degrees of freedom: p = 1 - t / sqrt(t^2 + 2).
    assert difference.p_value == pytest.approx(1 - 2.598076 / 8.75**0.5, abs=1e-6)
    low, high = difference.summary.low, difference.summary.high
    # 4.30265 * 0.2 / sqrt(3) = 0.49682
    assert (low, high) == pytest.approx((0.3 - 0.49682, 0.3 + 0.49682), abs=1e-5)


def test_an_interval_that_ends_at_0_has_a_p_value_of_5_percent() -> None:
    # Two seeds: t with one degree of freedom is 12.7062 at its 97.5 % quantile.
    middle = 12.7062047
    assert seed_difference([middle + 1, middle - 1], [0.0, 0.0]).p_value == pytest.approx(0.05, abs=1e-6)


def test_differences_without_spread_and_single_seeds() -> None:
    assert seed_difference([0.5, 0.75], [0.25, 0.5]).p_value == 0.0
    assert seed_difference([0.5, 0.5], [0.5, 0.5]).p_value == 1.0
    assert seed_difference([0.5], [0.25]).p_value is None
    with pytest.raises(ValueError, match="no pairs of 2 and 1 seeds"):
        seed_difference([0.5, 0.5], [0.5])


def test_holm_multiplies_the_smallest_by_their_number_and_never_goes_back() -> None:
    # 4 * 0.005 = 0.02, 3 * 0.01 = 0.03, 2 * 0.03 = 0.06, and 0.04 * 1 is not below it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.05]) == [0.05]
    assert holm([]) == []
