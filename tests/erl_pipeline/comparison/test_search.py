"""Choosing the best trial of each arm, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.comparison.design import Trial, make_design
from erl_pipeline.comparison.measures import Budgets
from erl_pipeline.comparison.search import judge_trials
from tests.erl_pipeline.comparison.curves import curve
from tests.erl_pipeline.comparison.designs import write_base


def test_the_best_mean_over_seeds_is_chosen_at_what_the_cheapest_trial_spent(tmp_path: Path) -> None:
    design = make_design(write_base(tmp_path), ["erl", "rlvr"], 2)
    runs = {run.arm: run for run in design.runs}

    def trial(arm: str, setting: str, *names: str) -> Trial:
        made = [
            replace(runs[arm], config=runs[arm].config.model_copy(update={"name": name})) for name in names
        ]
        return Trial(arm, (setting,), tuple(made))

    curves = {
        # Area up to 100 tokens: .3 and .5, mean .4.
        "a0": curve(100, 0.2, 0.4),
        "a1": curve(100, 0.4, 0.6),
        # Read off at 100 of 200 tokens, at .4 and .4: areas .3 and .4, mean .35, though both end higher.
        "b0": curve(200, 0.2, 0.6),
        "b1": curve(200, 0.4, 0.4),
        # Equal areas: the first is chosen.
        "c": curve(50, 0.2, 0.2),
        "d": curve(50, 0.2, 0.2),
    }
    trials = (
        trial("erl", "b", "b0", "b1"),
        trial("erl", "a", "a0", "a1"),
        trial("rlvr", "c", "c"),
        trial("rlvr", "d", "d"),
    )
    search, chosen = judge_trials(replace(design, trials=trials), "area_by_tokens", curves)
    assert {arm: each.settings for arm, each in chosen.items()} == {"erl": ("a",), "rlvr": ("c",)}
    assert [each.score for each in search.trials] == pytest.approx([0.35, 0.4, 0.2, 0.2])
    assert search.trials[0].scores == pytest.approx((0.3, 0.4))
    assert [each.chosen for each in search.trials] == [False, True, True, False]
    assert search.budgets["erl"] == Budgets(generated_tokens=100, policy_steps=4)
    assert (search.tokens("erl"), search.tokens("rlvr")) == (600, 100)
