from __future__ import annotations

from dataclasses import replace

import pytest

from erl_pipeline.comparison.measures import Budgets, find_budgets, iterations_to_spend
from tests.erl_pipeline.comparison.curves import curve


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


def test_a_run_that_gets_cheaper_is_judged_by_its_last_iterations() -> None:
    first, second, third = curve(100, 0.2, 0.5, 0.8)
    assert iterations_to_spend([first, second, replace(third, generated_tokens=150)], 250) == 4
