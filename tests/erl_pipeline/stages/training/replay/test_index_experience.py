"""Which attempts of groups of eight are stored."""

from __future__ import annotations

import pytest

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.replay import TierSettings
from erl_pipeline.stages.training.advantages import training_sequences
from erl_pipeline.stages.training.replay.index_experience import (
    fresh_success,
    group_row,
    is_stored,
    member_rows,
    response_digest,
    tried_tasks,
)
from tests.erl_pipeline.stages.training.replay.attempts import attempt, tried


def test_a_replayed_success_beside_seven_failures_makes_bucket_one() -> None:
    row = group_row(tried("task", "-------", replayed=True), "exgrpo", retired=())
    assert (row["successes"], row["group_size"], row["fresh"], row["replayed"]) == (1, 8, 7, 1)
    assert row["status"] == "active"
    assert row["policy_version"] == "policy-2"


@pytest.mark.parametrize(("fresh", "replayed"), [("++++++++", False), ("+++++++", True)])
def test_a_task_retires_when_all_succeed(fresh: str, replayed: bool) -> None:
    assert group_row(tried("task", fresh, replayed=replayed), "exgrpo", retired=())["status"] == "retired"


def test_a_retired_task_stays_retired_and_none_does_with_tiers() -> None:
    later = tried("task", "+-------")
    assert group_row(later, "exgrpo", retired={"task"})["status"] == "retired"
    assert group_row(tried("task", "++++++++"), "tiers", retired=())["status"] == "active"


def test_a_group_without_a_success_stores_nothing() -> None:
    assert not is_stored(tried("task", "--------"), "exgrpo")
    assert is_stored(tried("task", "-------+"), "exgrpo")
    assert is_stored(tried("task", "--------"), "tiers")


def test_successes_are_stored_once() -> None:
    task = tried("task", "+-++")
    members = [row for row, _ in member_rows(task, "exgrpo", None, "rollouts", known=set())]
    assert [row["trajectory_id"] for row in members] == ["task-2-0", "task-2-2", "task-2-3"]
    known = {response_digest(task.fresh[2])}
    again = [row for row, _ in member_rows(task, "exgrpo", None, "rollouts", known)]
    assert [row["trajectory_id"] for row in again] == ["task-2-0", "task-2-3"]


def test_equal_responses_have_equal_digests() -> None:
    one = attempt("task", 0, True, tokens=(5, 6))
    assert response_digest(one) == response_digest(attempt("task", 1, False, iteration=9, tokens=(5, 6)))
    assert response_digest(one) != response_digest(attempt("task", 0, True, tokens=(6, 5)))


def test_tiers_store_failures_too_with_quality_and_tier() -> None:
    members = [
        row for row, _ in member_rows(tried("task", "-+-+"), "tiers", TierSettings(), "rollouts", set())
    ]
    assert [row["tier"] for row in members] == [2, 0, 3, 1]
    assert all(row["quality"] > 0.7 for row in members if row["tier"] < 2)


def test_replayed_rows_join_the_group_of_the_fresh_ones() -> None:
    mixed = tried("task", "+--", replayed=True)
    (found,) = tried_tasks(mixed.fresh, mixed.replayed, "first_attempt")
    assert found == mixed
    assert fresh_success([found]) == pytest.approx(1 / 3)


@pytest.mark.parametrize(("fresh", "advantage"), [("-------", 0.875), ("+++----", 0.5), ("+++++++", 0.0)])
def test_the_advantage_of_what_is_replayed_is_one_minus_the_success_rate(
    fresh: str, advantage: float
) -> None:
    task = tried("task", fresh, replayed=True)
    rows = [*task.fresh, *task.replayed]
    sequences = training_sequences(rows, ObjectiveConfig(advantage_normalization="mean"))
    assert sequences[-1].role == "replay"
    assert sequences[-1].advantage == pytest.approx(advantage)
