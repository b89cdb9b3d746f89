"""The gate before an alias."""

from pathlib import Path

import pytest

from erl_pipeline.serving.learning.collect import collect, sealed_batches
from erl_pipeline.serving.learning.gate import Comparison, compare_feedback, compare_held_out, verdict
from erl_pipeline.serving.settings import EpisodeSettings, GateSettings
from erl_pipeline.statistics import bootstrap_low
from storage.serving.forgetting import forget_user
from storage.serving.traffic import Record
from storage.serving.users import NamedUser
from tests.erl_pipeline.serving.learning.served_traffic import RUN, TOMORROW, begin_run, log, rating, turn


def test_the_bootstrap_of_two_numbers_is_their_smaller_one_with_more_than_a_quarter_below() -> None:
    """Of two numbers, a resample is the smaller one twice in a quarter of all cases, both in a half."""
    assert bootstrap_low([[0.0, 1.0]], [1], 0.95) == 0.0
    assert bootstrap_low([[0.0, 1.0]], [1], 0.5) == 0.5
    assert bootstrap_low([[0.0, 1.0]], [1], 0.2) == 1.0
    assert bootstrap_low([[1.0], [0.25, 0.25]], [1, -1], 0.95) == 0.75


def test_held_out_tasks_are_compared_task_by_task() -> None:
    before, after = {"a": 0.0, "b": 1.0, "c": 0.5}, {"a": 1.0, "b": 1.0, "d": 0.0}

    found = compare_held_out(before, after, 0.95)

    assert found == Comparison(0.5, 0.0, {"tasks": 2})
    assert compare_held_out({}, after, 0.95) is None


@pytest.mark.parametrize(
    ("held_out", "feedback", "passed"),
    [
        (-0.02, None, True),
        (-0.03, None, False),
        (0.1, -0.03, False),
        (0.1, 0.0, True),
        (None, 0.5, False),
    ],
)
def test_each_lower_bound_must_reach_the_allowed_drop(
    held_out: float | None, feedback: float | None, passed: bool
) -> None:
    on_tasks, by_users = (None if low is None else Comparison(0.2, low, {}) for low in (held_out, feedback))

    judged = verdict(on_tasks, by_users, "new", "old", "night", GateSettings(held_out_drop=0.02))

    assert judged.passed == passed
    assert ("held_out_low" in judged.numbers) == (held_out is not None)


def test_feedback_compares_checkpoints_and_shows_how_many_rated(tmp_path: Path) -> None:
    begin_run(tmp_path)
    records: list[Record] = []
    for number, (policy, reward) in enumerate(
        [("new", 1.0), ("new", 1.0), ("new", None), ("new", None), ("old", 0.0), ("old", 1.0)]
    ):
        records.append(turn(f"t{number}", f"e{number}", policy_version=policy))
        if reward is not None:
            records.append(rating(f"f{number}", reward, f"e{number}"))
    log(tmp_path, *records)
    collect(str(tmp_path), RUN, EpisodeSettings(), TOMORROW)
    batches = sealed_batches(str(tmp_path), RUN)

    found = compare_feedback(str(tmp_path), batches, "new", "old", GateSettings(min_episodes=2))

    assert found is not None
    # The old mean is 0, 1/2 or 1, with 1/4, 1/2 and 1/4: the bound is that against 1.
    assert (found.difference, found.low) == (0.5, 0.0)
    assert found.beside == {
        "episodes_new": 2,
        "episodes_old": 2,
        "rated_share_new": 0.5,
        "rated_share_old": 1.0,
    }
    assert compare_feedback(str(tmp_path), batches, "new", "old", GateSettings(min_episodes=3)) is None


def test_forgetting_a_user_leaves_the_comparison_as_it_was(tmp_path: Path) -> None:
    begin_run(tmp_path)
    records: list[Record] = []
    for number, (policy, reward, user) in enumerate(
        [("new", 0.0, "u1"), ("old", 1.0, "u1"), ("old", 0.5, "gone"), ("old", None, "gone")]
    ):
        records.append(turn(f"t{number}", f"e{number}", policy_version=policy, user=user))
        if reward is not None:
            records.append(rating(f"f{number}", reward, f"e{number}", user=user))
    log(tmp_path, *records)
    collect(str(tmp_path), RUN, EpisodeSettings(), TOMORROW)

    forget_user(str(tmp_path), RUN, NamedUser("acme", ("gone",)))

    batches = sealed_batches(str(tmp_path), RUN)
    found = compare_feedback(str(tmp_path), batches, "new", "old", GateSettings(min_episodes=1))
    assert found is not None
    assert found.difference == -0.75
    assert (found.beside["episodes_old"], found.beside["rated_share_old"]) == (2, 2 / 3)
