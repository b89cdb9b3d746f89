from __future__ import annotations

import pytest

from erl_pipeline.comparison.runs import of_the_curve, shown_columns, thirds
from erl_pipeline.plan.column import Column
from tests.stage_records import stage_record


def test_thirds_are_means_over_iterations_and_then_over_seeds() -> None:
    first = {1: 0.1, 2: 0.3, 3: 0.0, 4: 0.0, 5: 0.5, 6: 0.7}
    second = {1: 0.4, 2: 0.4, 5: 0.8}
    early, late = thirds([first, second], 6).first, thirds([first, second], 6).last
    assert early is not None
    assert late is not None
    assert early.mean == pytest.approx((0.2 + 0.4) / 2)
    assert late.mean == pytest.approx((0.6 + 0.8) / 2)


def test_a_seed_without_the_number_does_not_count_there() -> None:
    summary = thirds([{1: 0.2}, {3: 0.6}], 3)
    assert summary.first is not None
    assert (summary.first.mean, summary.first.seeds) == (0.2, 1)
    assert thirds([{2: 0.2}], 3).first is None


def test_rates_of_rollouts_are_shown_and_sums_are_not() -> None:
    history = [stage_record(1, "generate_rollouts"), stage_record(1, "evaluate")]
    gain = Column("generate_rollouts", "gain", "gain", "gain of retries", compare=True)
    columns = [
        gain,
        Column("generate_rollouts", "tokens", "tokens", "tokens", compare=True, adds_up=True),
        Column("generate_rollouts", "retried", "retried", "retries"),
        Column("evaluate", "greedy_success", "held-out", "success", compare=True),
    ]
    assert shown_columns(columns, history) == [gain]


def test_a_curve_has_the_same_points_however_often_the_run_was_continued() -> None:
    """Every second iteration is evaluated. The run was asked for three iterations, then for five, then for as
    many as the tokens needed; five is what the comparison asks for."""
    history = [
        stage_record(iteration, "evaluate_on_test", made_from=str(iteration))
        for iteration in (0, 2, 3, 4, 5, 6, 7, 9)
    ]
    ids = {each.iteration: each.manifest.artifact_id for each in history}

    def planned(iterations: int) -> set[str]:
        return {ids.get(each, "") for each in (*range(0, iterations, 2), iterations)}

    assert [each.iteration for each in of_the_curve(history, 5, planned)] == [0, 2, 4, 5, 6, 9]

    def by_today(iterations: int) -> set[str]:
        """As if the code was edited, and the run trained again to seven iterations."""
        return {"another" if each == ids[9] else each for each in planned(iterations)}

    assert [each.iteration for each in of_the_curve(history, 5, by_today)] == [0, 2, 4, 5, 6, 7]
