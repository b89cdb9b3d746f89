from __future__ import annotations

import pytest

from erl_pipeline.comparison.measures import area_under_curve, value_at


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
