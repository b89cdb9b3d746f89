from __future__ import annotations

from dataclasses import replace

import pytest

from erl_pipeline.comparison.measures import MEASURES, Budgets, RunMeasures, measure
from erl_pipeline.comparison.result import arm_differences
from tests.erl_pipeline.comparison.curves import curve

SAME = measure(curve(100, 0.0, 0.0), Budgets(100, 4))


def runs(*areas: float, first_seed: int = 0) -> dict[int, RunMeasures]:
    """Seeds with these areas by tokens, equal in everything else."""
    return {seed: replace(SAME, area_by_tokens=area) for seed, area in enumerate(areas, start=first_seed)}


def test_the_baseline_is_compared_with_each_other_arm_in_each_measure() -> None:
    found = arm_differences({"a": runs(0.5, 0.6), "b": runs(0.4, 0.3), "c": runs(0.5, 0.6)}, "a")
    assert list(found) == list(MEASURES)
    assert all([row.arm for row in rows] == ["b", "c"] for rows in found.values())
    against_b = found["area_by_tokens"][0]
    assert against_b.difference.by_seed == pytest.approx([0.1, 0.3])
    assert against_b.seeds == (0, 1)


def test_p_values_are_corrected_for_the_table_and_for_all_tables() -> None:
    found = arm_differences({"a": runs(0.5, 0.6), "b": runs(0.4, 0.3), "c": runs(0.4, 0.5)}, "a")
    against_b, against_c = found["area_by_tokens"]
    # b: mean 0.2, standard error 0.1, so t = 2 and p = 1 - 2 / pi * atan(2). c: equal differences, p = 0.
    assert against_b.difference.p_value == pytest.approx(0.295167, abs=1e-6)
    assert against_c.difference.p_value == pytest.approx(0.0, abs=1e-9)
    # The larger of two p values stays as it is; as the second smallest of the eight in all tables it is
    # multiplied by 7.
    assert against_b.p_in_table == pytest.approx(0.295167, abs=1e-6)
    assert against_b.p_in_all == 1.0


def test_seeds_that_only_one_arm_has_are_left_out() -> None:
    found = arm_differences({"a": runs(0.5, 0.6, 0.7), "b": runs(0.4, 0.3, first_seed=1)}, "a")
    row = found["area_by_tokens"][0]
    assert row.seeds == (1, 2)
    assert row.difference.by_seed == pytest.approx([0.2, 0.4])


def test_an_arm_without_a_common_seed_and_a_missing_baseline_give_no_difference() -> None:
    apart = {"a": runs(0.5), "b": runs(0.4, first_seed=1)}
    assert all(rows == [] for rows in arm_differences(apart, "a").values())
    assert all(rows == [] for rows in arm_differences({"b": runs(0.4)}, "a").values())
