from __future__ import annotations

from dataclasses import replace

import pytest

from erl_pipeline.comparison.measures import Budgets, measure, seed_band
from tests.erl_pipeline.comparison.curves import curve


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
    band = seed_band([curve(100, 0.2, 0.4), curve(200, 0.2, 0.8)], "generated_tokens", 100, positions=3)
    assert band.positions == [0.0, 50.0, 100.0]
    # At 50 tokens 0.3 and 0.35, at 100 0.4 and 0.5.
    assert band.mean == pytest.approx([0.2, 0.325, 0.45])
    # 12.7062 * sd / sqrt(2), with sd = |difference| / sqrt(2), cut at 0 and 1.
    assert band.low == pytest.approx([0.2, 0.325 - 12.7062 * 0.025, 0.0], abs=1e-5)
    assert band.high == pytest.approx([0.2, 0.325 + 12.7062 * 0.025, 1.0], abs=1e-5)


def test_a_run_that_never_made_a_step_has_the_area_of_its_start() -> None:
    figures = measure(curve(100, 0.2, 0.2, steps_per_iteration=0), Budgets(100, 0))
    assert (figures.area_by_steps, figures.success_at_steps) == (0.2, 0.2)
