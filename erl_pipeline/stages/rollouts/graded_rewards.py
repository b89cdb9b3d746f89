"""Mean rewards of first attempts, where a reward says more than that an attempt succeeded or failed."""

from __future__ import annotations

import polars as pl

from erl_pipeline.episodes.roles import NEVER_TRAINED
from storage.tables.scored import was_scored

_COLUMNS = ("role", "parent_trajectory_id", "finish_reason", "reward")


def graded_rewards(rollouts: pl.LazyFrame) -> dict[str, float]:
    """`reward_ROLE`: the mean reward of the attempts that episodes begin with, by role, without those that
    could not be scored. A role all of whose rewards are 0 or 1 is left out: its success rate says as much.

    Args:
        rollouts: trajectories of one iteration.
    """
    means = (
        rollouts.select(_COLUMNS)
        .filter(pl.col("parent_trajectory_id").is_null(), ~pl.col("role").is_in(sorted(NEVER_TRAINED)))
        .filter(was_scored())
        .group_by("role")
        .agg(pl.col("reward").mean(), graded=(~pl.col("reward").is_in([0.0, 1.0])).any())
        .filter("graded")
        .sort("role")
        .collect()
    )
    return {f"reward_{role}": reward for role, reward in means.select("role", "reward").iter_rows()}
