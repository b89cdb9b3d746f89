from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from erl_pipeline.config.replay import TierSettings
from erl_pipeline.stages.training.replay.draw import draw_from_tiers, on_policy_weight, whole_shares
from erl_pipeline.stages.training.replay.quality import by_tokens, qualities, response_text, tiers_of
from tests.erl_pipeline.stages.training.replay.attempts import attempt

SETTINGS = TierSettings()


def test_quality_is_success_and_difference_from_the_others() -> None:
    assert qualities([True, True], [0.25, -0.5], SETTINGS) == pytest.approx([0.925, 1.0])
    # Vectors (1, 1), (1, 1) and (0, 2): cosines 1 and 1/sqrt(2).
    group = [
        attempt("task", place, False, tokens=tokens) for place, tokens in enumerate([(5, 6), (6, 5), (6, 6)])
    ]
    found = qualities([True, False, False], by_tokens(group), SETTINGS)
    both = 0.3 * (1 - (1 + 0.5**0.5) / 2)
    assert found == pytest.approx([0.7 + both, both, 0.3 * (1 - 0.5**0.5)])


def test_the_tools_that_an_attempt_called_are_part_of_what_it_said() -> None:
    call = {"function": {"name": "search", "arguments": {"query": "Bragg"}}}
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "A town."},
        {"role": "assistant", "content": "Nobody."},
    ]
    row = replace(attempt("t", 0, True), messages=json.dumps(messages))
    assert response_text(row) == 'search({"query": "Bragg"})\nNobody.'


def test_an_attempt_that_is_alone_differs_wholly() -> None:
    assert by_tokens([attempt("task", 0, True)]) == [0.0]


def test_a_group_has_tiers_of_equal_size() -> None:
    ranked = [0.1, 0.9, 0.5, 0.7, 0.3, 0.3, 0.8, 0.2]
    assert tiers_of(ranked, 4) == [3, 0, 1, 1, 2, 2, 0, 3]
    assert tiers_of(ranked, 2) == [1, 0, 0, 0, 1, 1, 0, 1]
    assert tiers_of(ranked, 1) == [0] * 8


def test_there_are_as_many_tiers_as_shares_and_the_default_has_four() -> None:
    assert len(SETTINGS.shares) == 4
    assert "reward" not in SETTINGS.model_dump()
    assert TierSettings(shares=(0.75, 0.25)).shares == (0.75, 0.25)
    for wrong in ((), (0.5, 0.25), (1.5, -0.5)):
        with pytest.raises(ValueError, match="shares"):
            TierSettings(shares=wrong)


def test_shares_are_made_whole_by_largest_remainder() -> None:
    # 16, 9.6, 4.8 and 1.6: rounded down they are 16, 9, 4 and 1, which is 30; 4.8 gets the first of the two
    # that are left; 9.6 and 1.6 have equal remainders, so 9.6, which comes first, gets the second.
    assert whole_shares(32, SETTINGS.shares) == [16, 10, 5, 1]
    assert whole_shares(8, SETTINGS.shares) == [4, 3, 1, 0]
    assert [sum(whole_shares(count, SETTINGS.shares)) for count in range(50)] == list(range(50))


def test_draws_are_of_different_tasks_and_a_short_tier_is_made_up_for() -> None:
    best = [("one", "a"), ("one", "b")]
    worst = [("one", "c"), ("two", "d"), ("three", "e"), ("four", "f")]
    drawn = draw_from_tiers([best, [], [], worst], 4, SETTINGS.shares, random.Random(0))
    assert sorted(task for task, _ in drawn) == ["four", "one", "three", "two"]
    assert drawn[0] in best


def test_fresh_rows_weigh_less_with_each_pass() -> None:
    weights = [on_policy_weight(epoch, SETTINGS) for epoch in range(6)]
    assert weights == pytest.approx([0.7, 0.6, 0.5, 0.4, 0.3, 0.3])
