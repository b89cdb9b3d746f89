"""Curves, budgets, measures and statistics over seeds, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from erl_pipeline.comparison.measures import (
    Budgets,
    across_seeds,
    area_under_curve,
    as_if_it_stayed,
    find_budgets,
    holm,
    iterations_to_spend,
    measure,
    seed_band,
    seed_difference,
    value_at,
)
from tests.erl_pipeline.comparison.curves import curve


def test_value_between_two_points_is_linear_and_outside_undefined() -> None:
    assert value_at([0, 100, 300], [0.2, 0.4, 0.8], 200) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="says nothing about 301"):
        value_at([0, 100, 300], [0.2, 0.4, 0.8], 301)


def test_area_is_the_mean_height_whatever_the_unit() -> None:
    assert area_under_curve([0, 1, 2], [0.4, 0.4, 0.4]) == pytest.approx(0.4)
    # Trapezoids (0.2 + 0.4) / 2 * 1 = 0.3 and (0.4 + 0.8) / 2 * 2 = 1.2 over a width of 3.
    assert area_under_curve([0, 1, 3], [0.2, 0.4, 0.8]) == pytest.approx(0.5)
    assert area_under_curve([0, 1000, 3000], [0.2, 0.4, 0.8]) == pytest.approx(0.5)


def test_area_up_to_a_budget_cuts_the_last_segment() -> None:
    # 0.3 up to 1, then (0.4 + 0.6) / 2 * 1 = 0.5 up to 2, over a width of 2.
    assert area_under_curve([0, 1, 3], [0.2, 0.4, 0.8], up_to=2) == pytest.approx(0.4)
    assert area_under_curve([0, 1, 3], [0.2, 0.4, 0.8], up_to=1) == pytest.approx(0.3)


def test_impossible_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="must rise"):
        area_under_curve([0, 2, 2], [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="as many positions"):
        area_under_curve([0, 1], [0.1])
    with pytest.raises(ValueError, match="width 0"):
        area_under_curve([0], [0.1])


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
    # Three seeds: t with two degrees of freedom is 4.302653 at its 97.5 % quantile, and the standard error is
    # 1 / sqrt(3).
    middle = 4.302653 / math.sqrt(3)
    found = seed_difference([middle + 1, middle, middle - 1], [0.0, 0.0, 0.0])
    assert found.p_value == pytest.approx(0.05, abs=1e-6)


def test_differences_without_spread_and_single_seeds() -> None:
    # Equal but for rounding: nothing says how much they would differ with other seeds.
    assert seed_difference([0.7, 0.8, 0.9], [0.6, 0.7, 0.8]).p_value is None
    assert seed_difference([0.5, 0.5, 0.1], [0.5, 0.5, 0.1]).p_value == 1.0
    # Two seeds differ by the same in one of ten comparisons of equal arms with 8 tasks.
    assert seed_difference([0.5, 0.75], [0.25, 0.4]).p_value is None
    assert seed_difference([0.5], [0.25]).p_value is None
    with pytest.raises(ValueError, match="no pairs of 2 and 1 seeds"):
        seed_difference([0.5, 0.5], [0.5])


def test_holm_multiplies_the_smallest_by_their_number_and_never_goes_back() -> None:
    # 4 * 0.005 = 0.02, 3 * 0.01 = 0.03, 2 * 0.03 = 0.06, and 0.04 * 1 is not below it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.05]) == [0.05]
    assert holm([]) == []


def test_tokens_are_those_of_the_most_expensive_arm_and_steps_the_fewest_of_any_run() -> None:
    curves = {
        "erl": [curve(120, 0.2, 0.5, 0.8), curve(100, 0.2, 0.5, 0.8, steps_per_iteration=3)],
        "rlvr": [curve(50, 0.2, 0.3, 0.4)],
    }
    assert find_budgets(curves, {"erl": 2, "rlvr": 2}) == Budgets(generated_tokens=200, policy_steps=6)
    with pytest.raises(ValueError, match="not evaluated after iteration 3"):
        find_budgets(curves, {"erl": 3, "rlvr": 2})


def test_an_arm_with_fewer_tasks_in_an_iteration_is_read_off_after_more_of_them() -> None:
    curves = {
        "erl": [curve(100, 0.2, 0.5, steps_per_iteration=4)],
        "rlvr": [curve(25, 0.2, 0.3, 0.4, 0.4, 0.4, steps_per_iteration=1)],
    }
    assert find_budgets(curves, {"erl": 1, "rlvr": 4}) == Budgets(generated_tokens=100, policy_steps=4)


def test_what_a_lengthened_run_spends_later_changes_no_budget() -> None:
    short, long = curve(50, 0.2, 0.3), curve(50, 0.2, 0.3, 0.4, 0.5)
    assert find_budgets({"a": [long]}, {"a": 1}) == find_budgets({"a": [short]}, {"a": 1}) == Budgets(50, 4)


def test_a_cheaper_run_needs_more_iterations_for_the_same_tokens() -> None:
    assert iterations_to_spend(curve(50, 0.2, 0.3, 0.4), 200) == 4
    assert iterations_to_spend(curve(50, 0.2, 0.3, 0.4), 201) == 5
    assert iterations_to_spend(curve(50, 0.2, 0.3, 0.4), 100) == 2
    with pytest.raises(ValueError, match="never spends 10"):
        iterations_to_spend(curve(0, 0.2, 0.3), 10)


def test_a_run_that_was_stopped_beyond_its_plan_ends_where_it_would_have_without_the_stop() -> None:
    """After the two planned iterations 50 tokens an iteration promise 250 at the fifth. At the third, where
    the run was stopped, it had them already."""
    points = curve(50, 0.2, 0.3, 0.4, 0.4)
    stopped = [*points[:3], replace(points[3], generated_tokens=260)]
    assert iterations_to_spend(stopped, 250, planned=2) == 5
    assert iterations_to_spend(stopped, 250) == 3
    assert iterations_to_spend(points[:3], 250, planned=2) == 5
    assert iterations_to_spend(points[:3], 100, planned=2) == 2


def test_a_run_that_gets_cheaper_is_judged_by_its_last_iterations() -> None:
    first, second, third = curve(100, 0.2, 0.5, 0.8)
    assert iterations_to_spend([first, second, replace(third, generated_tokens=150)], 250) == 4


def test_success_and_area_are_read_off_at_equal_tokens_and_at_equal_steps() -> None:
    figures = measure(curve(100, 0.2, 0.4, 0.8, 0.8), Budgets(generated_tokens=150, policy_steps=8))
    assert figures.start == 0.2
    assert figures.success_at_tokens == pytest.approx(0.6)
    # 0.3 over the first 100 tokens, 0.5 over the next 50.
    assert figures.area_by_tokens == pytest.approx((0.3 * 100 + 0.5 * 50) / 150)
    assert figures.success_at_steps == pytest.approx(0.8)
    # 0.3 over the first four steps, 0.6 over the next four.
    assert figures.area_by_steps == pytest.approx(0.45)


def test_costs_are_those_up_to_the_token_budget() -> None:
    figures = measure(curve(100, 0.2, 0.4, 0.8), Budgets(generated_tokens=150, policy_steps=6))
    assert (figures.iterations_at_tokens, figures.episodes_at_tokens) == (1.5, 12.0)
    assert (figures.policy_steps_at_tokens, figures.seconds_at_tokens) == (6.0, 3.0)
    assert figures.generated_tokens_at_steps == 150.0


def test_iterations_without_a_step_take_no_room_on_the_axis_of_steps() -> None:
    # Nothing was learned in the second iteration: 4, 4, 8 steps after the first, second and third.
    points = curve(100, 0.2, 0.4, 0.4, 0.8)
    points = [replace(point, policy_steps=steps) for point, steps in zip(points, (0, 4, 4, 8), strict=True)]
    figures = measure(points, Budgets(generated_tokens=300, policy_steps=8))
    # (0.2 + 0.4) / 2 over four steps, (0.4 + 0.8) / 2 over four.
    assert figures.area_by_steps == pytest.approx(0.45)
    assert figures.area_by_tokens == pytest.approx((0.3 + 0.4 + 0.6) / 3)


def test_a_run_that_ends_before_a_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="says nothing about 500"):
        measure(curve(100, 0.2, 0.4), Budgets(generated_tokens=500, policy_steps=4))


def test_a_band_holds_the_mean_and_its_interval() -> None:
    curves = [curve(100, 0.2, 0.4), curve(200, 0.2, 0.8)]
    positions, mean, low, high = seed_band(curves, "generated_tokens", 100, positions=3)
    assert positions == [0.0, 50.0, 100.0]
    # At 50 tokens 0.3 and 0.35, at 100 0.4 and 0.5.
    assert mean == pytest.approx([0.2, 0.325, 0.45])
    # 12.7062 * sd / sqrt(2), with sd = |difference| / sqrt(2), cut at 0 and 1.
    assert low == pytest.approx([0.2, 0.325 - 12.7062 * 0.025, 0.0], abs=1e-5)
    assert high == pytest.approx([0.2, 0.325 + 12.7062 * 0.025, 1.0], abs=1e-5)


def test_where_a_run_of_an_arm_that_takes_steps_took_none_nothing_is_read_off_by_steps() -> None:
    stuck, learning = curve(100, 0.2, 0.2, steps_per_iteration=0), curve(100, 0.2, 0.6)
    budgets = find_budgets({"erl": [stuck, learning], "rlvr": [learning]}, {"erl": 1, "rlvr": 1})
    assert budgets == Budgets(generated_tokens=100, policy_steps=0)
    figures = measure(learning, budgets)
    assert (figures.success_at_tokens, figures.area_by_steps, figures.success_at_steps) == (0.6, None, None)


def test_a_run_with_fewer_steps_than_the_others_has_no_figures_by_steps() -> None:
    """As of an arm whose first step came only in the iterations that equal tokens add."""
    found = measure(curve(50, 0.2, 0.4, steps_per_iteration=1), Budgets(50, 8))
    assert (found.success_at_tokens, found.area_by_steps, found.success_at_steps) == (0.4, None, None)


def test_an_arm_that_takes_no_steps_is_compared_by_tokens_and_leaves_the_others_their_steps() -> None:
    trained, evolved = curve(50, 0.2, 0.6, 0.8), curve(100, 0.2, 0.4, steps_per_iteration=0)
    budgets = find_budgets(
        {"rlvr": [trained], "prompt_evolution": [evolved]}, {"rlvr": 2, "prompt_evolution": 1}
    )
    assert budgets == Budgets(generated_tokens=100, policy_steps=8)
    found = [measure(each, budgets) for each in (trained, evolved)]
    assert [(each.success_at_tokens, each.success_at_steps) for each in found] == [(0.8, 0.8), (0.4, None)]
    # 0.4 over the first four steps, 0.7 over the next four.
    assert [each.area_by_steps for each in found] == [pytest.approx(0.55), None]
    assert [each.generated_tokens_at_steps for each in found] == [100.0, None]


def test_the_last_success_of_a_run_that_ends_early_stays() -> None:
    short = curve(50, 0.2, 0.4)
    assert as_if_it_stayed(short, 50) == short
    found = measure(as_if_it_stayed(short, 150), Budgets(150, policy_steps=4))
    # .3 over the first 50 tokens, .4 over the next 100.
    assert found.area_by_tokens == pytest.approx((0.3 + 2 * 0.4) / 3)
    assert (found.success_at_tokens, found.iterations_at_tokens) == (0.4, 1)
    assert (found.success_at_steps, found.generated_tokens_at_steps) == (0.4, 50)
