from __future__ import annotations

import pytest

from erl_pipeline.evaluation.comparison import iterations_to_spend, measure, seed_band, token_budget
from erl_pipeline.evaluation.history import CurvePoint


def curve(tokens_per_iteration: int, *success: float) -> list[CurvePoint]:
    """Evaluated after every iteration; 8 episodes, 4 optimizer steps and 2 seconds each."""
    return [
        CurvePoint(
            iteration,
            rate,
            rate,
            rate,
            tokens_per_iteration * iteration,
            8 * iteration,
            4 * iteration,
            2.0 * iteration,
        )
        for iteration, rate in enumerate(success)
    ]


def test_the_budget_is_what_the_most_expensive_method_always_spends() -> None:
    curves = {
        "erl": [curve(120, 0.2, 0.5, 0.8), curve(100, 0.2, 0.5, 0.8)],
        "rlvr": [curve(50, 0.2, 0.3, 0.4)],
    }
    assert token_budget(curves, iterations=2) == 200


def test_a_cheaper_run_needs_more_iterations_for_the_same_tokens() -> None:
    assert iterations_to_spend(curve(50, 0.2, 0.3, 0.4), 200) == 4
    assert iterations_to_spend(curve(50, 0.2, 0.3, 0.4), 201) == 5
    assert iterations_to_spend(curve(50, 0.2, 0.3, 0.4), 100) == 2
    with pytest.raises(ValueError, match="never spends 10"):
        iterations_to_spend(curve(0, 0.2, 0.3), 10)


def test_a_run_that_gets_cheaper_is_judged_by_its_last_iterations() -> None:
    slowing = [*curve(100, 0.2, 0.5), CurvePoint(2, 0.8, 0.8, 0.8, 150, 16, 8, 4.0)]
    assert iterations_to_spend(slowing, 250) == 4


def test_measures_are_taken_after_the_iterations_and_at_the_budget() -> None:
    measures = measure(curve(100, 0.2, 0.4, 0.8, 0.8), iterations=2, budget=150)
    assert (measures.start, measures.final) == (0.2, 0.8)
    assert measures.area_by_iteration == pytest.approx((0.3 + 0.6) / 2)
    assert measures.success_at_budget == pytest.approx(0.6)
    # 0.3 over the first 100 tokens, 0.5 over the next 50.
    assert measures.area_by_tokens == pytest.approx((0.3 * 100 + 0.5 * 50) / 150)
    assert measures.optimizer_steps_at_budget == pytest.approx(6.0)
    assert (measures.episodes, measures.generated_tokens, measures.optimizer_steps) == (16, 200, 8)
    assert measures.seconds == 4.0


def test_a_run_that_ends_before_the_budget_or_the_iterations_is_refused() -> None:
    with pytest.raises(ValueError, match="says nothing about 500"):
        measure(curve(100, 0.2, 0.4), iterations=1, budget=500)
    with pytest.raises(ValueError, match="not evaluated after iteration 3"):
        measure(curve(100, 0.2, 0.4), iterations=3, budget=50)


def test_a_band_holds_mean_least_and_most_of_the_seeds() -> None:
    band = seed_band([curve(100, 0.2, 0.4), curve(200, 0.0, 0.8)], budget=100, positions=3)
    assert band.tokens == [0.0, 50.0, 100.0]
    assert band.mean == pytest.approx([0.1, 0.25, 0.4])
    assert band.low == pytest.approx([0.0, 0.2, 0.4])
    assert band.high == pytest.approx([0.2, 0.3, 0.4])
