"""Intervals over seeds and tasks, where all resamples can be listed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from erl_pipeline.comparison.bootstrap import (
    RESAMPLES,
    _crossed,
    _nested,
    figures_by_task,
    paired,
    seed_and_task_interval,
)
from erl_pipeline.comparison.measures import MEASURES, Budgets, measure
from tests.erl_pipeline.comparison.curves import curve


def test_resamples_of_two_seeds_and_two_tasks_are_as_frequent_as_they_are_listed() -> None:
    # Seed 0 solves nothing, seed 1 the second task. With rows and columns drawn twice each, the mean is the
    # share of seed 1 (1/4, 1/2, 1/4 for 0, .5, 1) times the share of task b (as likely).
    table = np.array([[0.0, 0.0], [0.0, 1.0]])
    means = _crossed(table)
    expected = {0.0: 7 / 16, 0.25: 4 / 16, 0.5: 4 / 16, 1.0: 1 / 16}
    listed = [
        table[np.ix_(rows, columns)].mean()
        for rows in itertools.product((0, 1), repeat=2)
        for columns in itertools.product((0, 1), repeat=2)
    ]
    assert {value: listed.count(value) / 16 for value in listed} == expected
    for value, probability in expected.items():
        assert np.mean(means == value) == pytest.approx(probability, abs=0.02)


def test_tasks_of_its_own_are_drawn_for_each_seed() -> None:
    # Each of the two places is seed 0 (mean 0) or seed 1 (0, .5 or 1 with 1/4, 1/2, 1/4): 0 with 5/8, .5 with
    # 2/8, 1 with 1/8. Their mean is 0 with 25/64, .25 with 20/64, .5 with 14/64, .75 with 4/64, 1 with 1/64.
    means = _nested([np.zeros(2), np.array([0.0, 1.0])])
    for value, of_64 in {0.0: 25, 0.25: 20, 0.5: 14, 0.75: 4, 1.0: 1}.items():
        assert np.mean(means == value) == pytest.approx(of_64 / 64, abs=0.02)
    assert len(means) == RESAMPLES


def test_the_interval_has_the_rarest_resamples_that_still_count() -> None:
    # As above, 1 is a resample of 16: it is above the upper 2.5 %, so that it ends the interval.
    shared = [{"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 1.0}]
    assert seed_and_task_interval(shared) == (0.0, 1.0)
    # With tasks of their own, 1 is one resample of 64, and .75 one of 16.
    apart = [{"a": 0.0, "b": 0.0}, {"c": 0.0, "d": 1.0}]
    assert seed_and_task_interval(apart) == (0.0, 0.75)
    # Seeds that agree on every task still leave the choice of tasks: none of three is solved with (2/3)^3.
    same = [{"a": 1.0, "b": 0.0, "c": 0.0}] * 5
    assert seed_and_task_interval(same) == pytest.approx((0.0, 1.0))
    assert seed_and_task_interval(same[:1]) is None
    assert seed_and_task_interval([{}, {}]) is None


def test_a_task_that_was_not_scored_with_one_seed_leaves_the_others_drawn_together() -> None:
    # Seeds agree on every board, so that only the boards are drawn: of four, half are easy.
    seeds = [{"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0} for _ in range(8)]
    together = seed_and_task_interval(seeds)
    assert together == (0.0, 1.0)  # All four hard, or easy: each a 16th.
    del seeds[3]["d"]
    # Of the three left two are easy: all three hard is one case of 27, all easy 8.
    assert seed_and_task_interval(seeds) == (0.0, 1.0)
    # Half of them is enough; with fewer, each seed has tasks of its own, and 8 seeds draw 8 times as many.
    del seeds[2]["a"]
    assert seed_and_task_interval(seeds) == (0.0, 1.0)
    del seeds[1]["b"]
    low, high = seed_and_task_interval(seeds) or (0.0, 0.0)
    assert 0.2 < low < high < 0.8


def test_the_figures_of_tasks_have_the_runs_figure_as_their_mean() -> None:
    outcomes = {"a": [False, True, True], "b": [True, False, True]}
    points, budgets = curve(100, 0.5, 0.5, 1.0), Budgets(generated_tokens=150, policy_steps=8)
    figures = figures_by_task(points, outcomes, budgets)
    # Task a rises from 0 to 1 in the first 100 tokens and stays: 50 and 50, over 150. Task b falls from 1 to
    # 0, and is at .5 after 50 more: 50 and 12.5.
    assert figures["area_by_tokens"] == pytest.approx({"a": 100 / 150, "b": 62.5 / 150})
    assert figures["success_at_tokens"] == pytest.approx({"a": 1.0, "b": 0.5})
    whole = measure(points, budgets)
    for name in MEASURES:
        assert sum(figures[name].values()) / 2 == pytest.approx(getattr(whole, name))


def test_differences_are_taken_task_by_task() -> None:
    assert paired({"a": 1.0, "b": 0.5}, {"b": 1.0, "c": 1.0}) == {"b": -0.5}
