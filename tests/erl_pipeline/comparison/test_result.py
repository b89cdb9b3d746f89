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
    ours, b, c = runs(0.5, 0.6, 0.7), runs(0.4, 0.4, 0.4), runs(0.4, 0.5, 0.6)
    against_b, against_c = arm_differences({"a": ours, "b": b, "c": c}, "a")["area_by_tokens"]
    # b: mean .2, standard error .1 / sqrt(3), so t = sqrt(12), and p = 1 - t / sqrt(t^2 + 2) = .074180.
    # c: equal differences, which have no p value.
    assert against_b.difference.p_value == pytest.approx(0.074180, abs=1e-6)
    assert (against_c.difference.p_value, against_c.p_in_table, against_c.p_in_all) == (None, None, None)
    # The only one in its table stays as it is; the smallest of the seven in all tables is multiplied by 7.
    assert against_b.p_in_table == pytest.approx(0.074180, abs=1e-6)
    assert against_b.p_in_all == pytest.approx(0.519260, abs=1e-5)


def test_seeds_that_only_one_arm_has_are_left_out() -> None:
    found = arm_differences({"a": runs(0.5, 0.6, 0.7), "b": runs(0.4, 0.3, first_seed=1)}, "a")
    row = found["area_by_tokens"][0]
    assert row.seeds == (1, 2)
    assert row.difference.by_seed == pytest.approx([0.2, 0.4])


def test_an_arm_without_a_common_seed_and_a_missing_baseline_give_no_difference() -> None:
    apart = {"a": runs(0.5), "b": runs(0.4, first_seed=1)}
    assert all(rows == [] for rows in arm_differences(apart, "a").values())
    assert all(rows == [] for rows in arm_differences({"b": runs(0.4)}, "a").values())
