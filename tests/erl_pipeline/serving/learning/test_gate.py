"""The gate before an alias."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.serving.learning.collect import collect
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

    lacks = "1 of 3 held-out tasks are not scored any more"
    assert found == Comparison(0.5, 0.0, {"tasks": 2, "not_scored": 1}, lacks)
    assert compare_held_out({}, after, 0.95) is None


def test_a_checkpoint_that_loses_its_hard_tasks_does_not_pass() -> None:
    before = {f"t{number}": 0.5 for number in range(100)}
    for kept, passed in ((90, True), (89, False)):
        after = {f"t{number}": 0.5 for number in range(kept)}
        judged = verdict(
            compare_held_out(before, after, 0.95),
            None,
            "new",
            "old",
            "night",
            GateSettings(held_out_drop=0.0),
        )
        assert judged.passed == passed
        assert f"lower bound +0.000 over {kept} tasks, needed " in judged.reason
    assert judged.reason.endswith("reached; 11 of 100 held-out tasks are not scored any more")


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


def comparison_of(
    store: Path, episodes: Sequence[tuple[str, float | None, str]], least: int = 2, **changes: Any
) -> Comparison | None:
    """That of `new` and `old` after these episodes: who answered, the rating and the user."""
    begin_run(store)
    records: list[Record] = []
    for number, (policy, reward, user) in enumerate(episodes):
        records.append(turn(f"t{number}", f"e{number}", policy_version=policy, user=user, **changes))
        if reward is not None:
            records.append(rating(f"f{number}", reward, f"e{number}", user=user))
    log(store, *records)
    collect(str(store), RUN, EpisodeSettings(), TOMORROW, at_least=0)
    settings = GateSettings(min_episodes=least, min_users=2)
    return compare_feedback(str(store), RUN, "new", "old", settings)


FOUR = [("new", 1.0, "a"), ("new", 1.0, "b"), ("new", None, "c"), ("new", None, "d"), ("old", 0.0, "e")]


def test_feedback_compares_checkpoints_and_shows_how_many_rated(tmp_path: Path) -> None:
    found = comparison_of(tmp_path / "enough", [*FOUR, ("old", 1.0, "f")])
    assert found is not None
    # The old mean is 0, 1/2 or 1, with 1/4, 1/2 and 1/4: the bound is that against 1.
    assert (found.difference, found.low) == (0.5, 0.0)
    assert found.beside == {
        "episodes_new": 2,
        "episodes_old": 2,
        "users_new": 2,
        "users_old": 2,
        "episodes_of_both": 0,
        "rated_share_new": 0.5,
        "rated_share_old": 1.0,
    }
    assert comparison_of(tmp_path / "few episodes", [*FOUR, ("old", 1.0, "f")], least=3) is None
    assert comparison_of(tmp_path / "one user", [*FOUR, ("old", 1.0, "e")]) is None


def test_each_user_counts_once_and_episodes_without_one_by_themselves(tmp_path: Path) -> None:
    """The old means of users are 0 and 1, of three episodes; nobody's two episodes are 1 and 1 of the new."""
    many = [("old", 0.0, "a"), ("old", 0.0, "a"), ("old", 1.0, "b"), ("new", 1.0, ""), ("new", 1.0, "")]
    found = comparison_of(tmp_path, many)
    assert found is not None
    assert (found.difference, found.low) == (0.5, 0.0)
    assert (found.beside["users_new"], found.beside["users_old"], found.beside["episodes_old"]) == (2, 2, 3)


def test_answers_that_cannot_be_trained_on_have_been_rated(tmp_path: Path) -> None:
    rated = [("new", 0.0, "a"), ("new", 0.5, "b"), ("old", 1.0, "c"), ("old", 1.0, "d")]
    found = comparison_of(tmp_path, rated, temperature=0.0, not_trainable="its temperature is 0")
    assert found is not None
    assert (found.difference, found.beside["rated_share_new"]) == (-0.75, 1.0)


def test_an_episode_of_both_checkpoints_says_nothing_of_either(tmp_path: Path) -> None:
    """Production changed in the middle of a conversation that then was disliked."""
    begin_run(tmp_path)
    alone = [("new", 1.0), ("new", 1.0), ("old", 0.5), ("old", 0.5)]
    records: list[Record] = [
        record
        for number, (policy, reward) in enumerate(alone)
        for record in (
            turn(f"t{number}", f"e{number}", policy_version=policy, user=f"u{number}"),
            rating(f"f{number}", reward, f"e{number}", user=f"u{number}"),
        )
    ]
    records += [
        turn("t8", "both", policy_version="old"),
        turn("t9", "both", policy_version="new", messages=({"role": "user", "content": "and now?"},)),
        rating("f9", 0.0, "both"),
    ]
    log(tmp_path, *records)
    collect(str(tmp_path), RUN, EpisodeSettings(), TOMORROW)
    settings = GateSettings(min_episodes=2, min_users=2)
    found = compare_feedback(str(tmp_path), RUN, "new", "old", settings)
    assert found is not None
    assert (found.difference, found.beside["episodes_of_both"]) == (0.5, 1)


def test_forgetting_a_user_leaves_the_comparison_as_it_was(tmp_path: Path) -> None:
    begin_run(tmp_path)
    records: list[Record] = []
    for number, (policy, reward, user) in enumerate(
        [
            ("new", 0.0, "u1"),
            ("new", 0.0, "u2"),
            ("old", 1.0, "u1"),
            ("old", 0.5, "gone"),
            ("old", None, "gone"),
        ]
    ):
        records.append(turn(f"t{number}", f"e{number}", policy_version=policy, user=user))
        if reward is not None:
            records.append(rating(f"f{number}", reward, f"e{number}", user=user))
    log(tmp_path, *records)
    collect(str(tmp_path), RUN, EpisodeSettings(), TOMORROW)

    forget_user(str(tmp_path), RUN, NamedUser("acme", ("gone",)))

    found = compare_feedback(str(tmp_path), RUN, "new", "old", GateSettings(min_episodes=1, min_users=2))
    assert found is not None
    assert found.difference == -0.75
    assert (found.beside["episodes_old"], found.beside["rated_share_old"]) == (2, 2 / 3)
