from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from erl_pipeline.stages.rollouts.graded_rewards import graded_rewards


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
