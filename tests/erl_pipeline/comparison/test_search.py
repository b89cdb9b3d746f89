"""Choosing the best trial of each arm, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.comparison.design import Trial, make_design
from erl_pipeline.comparison.search import judge_trials, search_tokens
from tests.erl_pipeline.comparison.curves import curve
from tests.erl_pipeline.comparison.designs import write_base


def test_the_best_mean_over_seeds_is_chosen_at_one_budget_for_all_arms(tmp_path: Path) -> None:
    design = make_design(write_base(tmp_path), ["erl", "rlvr"], 2, iterations=2)
    runs = {run.arm: run for run in design.runs}

    def trial(arm: str, setting: str, *names: str) -> Trial:
        made = [
            replace(runs[arm], config=runs[arm].config.model_copy(update={"name": name})) for name in names
        ]
        return Trial(arm, (setting,), tuple(made))

    trials = (
        trial("erl", "b", "b0", "b1"),
        trial("erl", "a", "a0", "a1"),
        trial("rlvr", "c", "c"),
        trial("rlvr", "d", "d"),
    )
    design = replace(design, trials=trials)
    first = {
        # In the two iterations that were planned: 100, 100, 100 and 800 tokens. The lower median is 100.
        "a0": curve(50, 0.2, 0.3, 0.4),
        "a1": curve(50, 0.4, 0.5, 0.6),
        "b0": curve(400, 0.2, 0.6, 0.6),
        "b1": curve(50, 0.4, 0.4, 0.4),
        # 40 and 30 tokens: the cheaper arm, which has to be trained for longer.
        "c": curve(20, 0.2, 0.2, 0.2),
        "d": curve(15, 0.2, 0.3, 0.1),
    }
    tokens = search_tokens(design, first)
    assert tokens == 100

    longer = {
        "c": curve(20, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2),
        "d": curve(20, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1),
    }
    search, chosen = judge_trials(design, "area_by_tokens", tokens, first | longer)
    # b0 is read off at a quarter of its first iteration, at .3: its area is .25, and b1's is .4.
    # d has an area of (.25 + .2 + 3 * .1) / 5 = .15 up to 100 tokens, and .225 up to 40.
    assert {arm: each.settings for arm, each in chosen.items()} == {"erl": ("a",), "rlvr": ("c",)}
    assert [each.score for each in search.trials] == pytest.approx([0.325, 0.4, 0.2, 0.15])
    assert search.trials[0].scores == pytest.approx((0.25, 0.4))
    assert [each.chosen for each in search.trials] == [False, True, True, False]
    assert search.read_off_at == 100
    assert search.tokens == {"erl": 800 + 100 + 100 + 100, "rlvr": 100 + 100}
    # Longer curves change nothing about the budget.
    assert search_tokens(design, first | longer) == 100


def test_a_trial_that_ends_before_the_others_counts_with_its_last_success(tmp_path: Path) -> None:
    """Its policy answers with a token or two, and takes no steps."""
    design = make_design(write_base(tmp_path), ["erl", "rlvr"], 2, iterations=2)
    trials = tuple(
        Trial(run.arm, (name,), (replace(run, config=run.config.model_copy(update={"name": name})),))
        for run in design.runs[:2]
        for name in (f"{run.arm} a", f"{run.arm} b")
    )
    curves = {
        "erl a": curve(50, 0.2, 0.4, 0.4),
        "erl b": curve(1, 0.2, 0.0, 0.0, steps_per_iteration=0),
        "rlvr a": curve(1, 0.2, 0.1, 0.1, steps_per_iteration=0),
        "rlvr b": curve(50, 0.2, 0.3, 0.3),
    }
    design = replace(design, trials=trials)
    search, _ = judge_trials(design, "success_at_tokens", search_tokens(design, curves), curves)
    # The lower median of each arm is 2 tokens, where "erl a" is at 1/25 of its first iteration.
    assert search.read_off_at == 2
    assert [each.score for each in search.trials] == pytest.approx([0.208, 0.0, 0.1, 0.204])
    search, _ = judge_trials(design, "success_at_tokens", 100, curves)
    assert [each.scores for each in search.trials] == [(0.4,), (0.0,), (0.1,), (0.3,)]
    assert [each.chosen for each in search.trials] == [True, False, False, True]
    assert [each.ended_early for each in search.trials] == [False, True, True, False]


def test_of_equal_trials_the_first_is_chosen(tmp_path: Path) -> None:
    design = make_design(write_base(tmp_path), ["erl", "rlvr"], 2, iterations=1)
    trials = tuple(
        Trial(
            run.arm, (name,), (replace(run, config=run.config.model_copy(update={"name": run.arm + name})),)
        )
        for run in design.runs[:2]
        for name in "ab"
    )
    curves = {name: curve(50, 0.2, 0.2) for name in ("erla", "erlb", "rlvra", "rlvrb")}
    design = replace(design, trials=trials)
    _, chosen = judge_trials(design, "area_by_tokens", search_tokens(design, curves), curves)
    assert {arm: each.settings for arm, each in chosen.items()} == {"erl": ("a",), "rlvr": ("a",)}
