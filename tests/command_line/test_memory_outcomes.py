from __future__ import annotations

import pytest

from command_line.memory.outcomes import effect_lines
from erl_pipeline.evaluation.memory_effect import memory_effect
from storage.memory.use import Comparison, Outcomes

NOTHING, OURS = Outcomes({}), Outcomes({"a": [True, False], "b": [True]})
OTHERS = Outcomes({"a": [False], "b": [False, False]})


def lines(comparison: Comparison) -> list[str]:
    return effect_lines(memory_effect(comparison), "this entry", "others at the same tasks")


def test_attempts_with_memory_are_compared_with_those_of_the_same_iterations() -> None:
    effect = memory_effect(Comparison(OURS, OTHERS, OTHERS))
    assert effect.with_memory is not None
    assert effect.difference is not None
    assert (effect.with_memory.attempts, effect.difference.value) == (3, pytest.approx(2 / 3))
    assert lines(Comparison(OURS, OTHERS, OTHERS))[0].startswith(
        "attempts after a prompt that held this entry: 2 of 3 succeeded, 0.667 ("
    )


def test_where_there_is_nothing_to_compare_with_it_says_so() -> None:
    assert lines(Comparison(OURS, NOTHING, NOTHING))[-1] == (
        "there is no comparison: there are no others at the same tasks"
    )
    assert lines(Comparison(OURS, OTHERS, NOTHING))[-1].startswith("there is no fair comparison")
    assert lines(Comparison(NOTHING, NOTHING, NOTHING)) == [
        "no attempt followed a prompt that held this entry"
    ]
