from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl
import pytest

from erl_pipeline.stages.rollouts.counts import (
    count_parts,
    count_rollouts,
    graded_rewards,
    part_rates,
    require_scored,
    signal_groups,
    success_rates,
)
from storage.errors import EnvironmentFailed
from tests.erl_pipeline.episodes.script import play


def test_counts_of_three_episodes() -> None:
    solved = play(["right a", "right a"])[0]
    helped = play(["down b", "? a b ?", "right a", "right a"], sample=1)[0]
    failed = play(["down b", "a b"], sample=2)[0]
    counts = count_rollouts([*solved, *helped, *failed])

    assert counts["episodes"] == 3
    assert (counts["first_attempt_count"], counts["first_attempt_successes"]) == (3, 1)
    assert (counts["second_attempt_count"], counts["second_attempt_successes"]) == (1, 1)
    assert (counts["reflection_count"], counts["ill_formed"]) == (2, 1)
    assert counts["episode_successes"] == 2
    # Turns of 3 tokens (2 + 1 + 2 + 1 of them), reflections of 5 and 3.
    assert counts["generated_tokens"] == 3 * 6 + 5 + 3
    assert success_rates(counts) == pytest.approx(
        {
            "success_first_attempt": 1 / 3,
            "success_reflection": 0.5,
            "success_second_attempt": 1.0,
            "success_episode": 2 / 3,
        }
    )


def test_a_group_has_a_signal_where_first_attempts_of_a_subgroup_differ() -> None:
    solved, helped = play(["right a", "right a"])[0], play(["down b", "? a b ?", "right a", "right a"])[0]
    failed = play(["down b", "a b"])[0]
    assert signal_groups([*solved, *failed]) == 1
    assert signal_groups([*failed, *helped]) == 0  # what succeeded was no first attempt
    apart = [replace(row, subgroup="guided") for row in solved]
    assert signal_groups([*apart, *failed]) == 0
    assert signal_groups([*solved, *(replace(row, finish_reason="scorer_error") for row in failed)]) == 0
    others = [replace(row, group_id="other") for row in (*solved, *failed)]
    assert signal_groups([*solved, *failed, *others]) == 2


def test_what_was_not_scored_is_counted_apart_and_in_no_rate() -> None:
    solved = play(["right a", "right a"])[0]
    helped = play(["down b", "? a b ?", "right a", "right a"], sample=1)[0]
    # Its second attempt would have succeeded; its first attempt failed, which is known.
    unknown = play(["down b", "? a b ?", "right a", "right a"], sample=2)[0]
    unknown[1:] = [replace(row, finish_reason="environment_error") for row in unknown[1:]]
    dead = [replace(play(["down b"], sample=3, max_revisions=0)[0][0], finish_reason="scorer_error")]
    counts = count_rollouts([*solved, *helped, *unknown, *dead])
    assert (counts["first_attempt_count"], counts["first_attempt_not_scored"]) == (4, 1)
    assert (counts["reflection_count"], counts["reflection_not_scored"]) == (2, 1)
    assert (counts["episodes"], counts["episodes_not_scored"], counts["episode_successes"]) == (4, 2, 2)
    assert (counts["environment_errors"], counts["scorer_errors"]) == (1, 1)
    assert "environment_timeouts" not in counts
    assert success_rates(counts) == pytest.approx(
        {
            "success_first_attempt": 1 / 3,
            "success_reflection": 1.0,
            "success_second_attempt": 1.0,
            "success_episode": 1.0,
        }
    )
    parts = count_parts([*solved, *helped, *unknown, *dead])
    assert part_rates(parts) == pytest.approx(
        {"part.corner.success_first": 1 / 3, "part.corner.success_episode": 1.0}
    )


def test_a_rate_of_nothing_is_left_out() -> None:
    assert success_rates(count_rollouts(play(["right a", "right a"])[0])).keys() == {
        "success_first_attempt",
        "success_episode",
    }


def rollouts(rewards: Sequence[float], unscored: int = 0) -> pl.LazyFrame:
    """First attempts with these rewards, some that could not be scored, and a second attempt."""
    finish = ["done"] * len(rewards) + ["scorer_error"] * unscored
    first = [
        {"role": "first_attempt", "parent_trajectory_id": None, "finish_reason": reason, "reward": reward}
        for reason, reward in zip(finish, [*rewards, *[0.0] * unscored], strict=True)
    ]
    second = {"role": "second_attempt", "parent_trajectory_id": "t", "finish_reason": "done", "reward": 0.7}
    return pl.DataFrame([*first, second], schema_overrides={"parent_trajectory_id": pl.String}).lazy()


def test_the_mean_reward_of_first_attempts_is_given_where_one_is_neither_0_nor_1() -> None:
    assert graded_rewards(rollouts([0.0, 0.5, 1.0, 0.5], unscored=2)) == {"reward_first_attempt": 0.5}


def test_rewards_of_0_and_1_are_left_to_the_success_rate() -> None:
    assert graded_rewards(rollouts([0.0, 1.0, 1.0])) == {}


ROLLOUTS = pl.DataFrame(
    {
        "episode_id": ["a-0", "b-0", "b-0", "c-0"],
        "task_id": ["a", "b", "b", "c"],
        "finish_reason": ["done", "scorer_error", "scorer_error", "scorer_error"],
        "feedback": ["wrong", "what a reflection answers", "step: it gave nan", "step: it gave 2"],
    }
).lazy()


def test_a_hundredth_of_the_episodes_may_fail() -> None:
    require_scored({"episodes": 200, "scorer_errors": 2}, ROLLOUTS)
    require_scored({"episodes": 3}, ROLLOUTS)


def test_more_stop_the_run_and_name_the_first_task() -> None:
    told = (
        "2 of 199 episodes could not be scored, more than 1%; they are of 2 tasks, the first is b: step: it"
    )
    with pytest.raises(EnvironmentFailed, match=told):
        require_scored({"episodes": 199, "scorer_errors": 2}, ROLLOUTS)
