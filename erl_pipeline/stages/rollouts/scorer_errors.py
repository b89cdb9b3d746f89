"""Scorers that fail: a few attempts that could not be scored are data, more than a hundredth of the episodes
stop the run."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from erl_pipeline.stages.rollouts.counts import reason_counter
from storage.errors import EnvironmentFailed
from storage.tables.scored import NotScored

ALLOWED_SHARE = 0.01
_REASON: NotScored = "scorer_error"


def require_scored(counters: Mapping[str, int], rollouts: pl.LazyFrame) -> None:
    """Raise `EnvironmentFailed`, naming a task, where more than `ALLOWED_SHARE` of an iteration's episodes
    could not be scored.

    Args:
        counters: the counters of all shards, added up.
        rollouts: the trajectories of the iteration.
    """
    failed, episodes = counters.get(reason_counter(_REASON), 0), counters.get("episodes", 0)
    if failed <= ALLOWED_SHARE * episodes:
        return
    ended = rollouts.filter(pl.col("finish_reason") == _REASON)
    # An episode's last row is the attempt; the reflection that led to it comes before.
    found = ended.group_by("episode_id", maintain_order=True).last().select("task_id", "feedback").collect()
    task, what = found.row(0)
    raise EnvironmentFailed(
        f"{failed} of {episodes} episodes could not be scored, more than {ALLOWED_SHARE:.0%}; they are of "
        f"{found['task_id'].n_unique()} tasks, the first is {task}: {what}. Correct the scorer, or that line "
        "of the task file, and start the run again; with an edited scorer or file, all rollouts are "
        "sampled again"
    )
