"""How much better retries do than other first attempts at the same task.

The success rate of retries alone is biased: only failed attempts are retried, so that hard tasks are retried
more often. A retry is therefore compared with the first attempts that the same policy made at the same task
in other episodes (leave one out): their mean is the expected success of a plain second try.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import polars as pl

from erl_pipeline.episodes.roles import NEVER_TRAINED
from erl_pipeline.statistics import mean_over_tasks
from storage.tables.scored import was_scored

_COLUMNS = (
    "task_id",
    "episode_id",
    "role",
    "parent_trajectory_id",
    "revision_index",
    "text",
    "finish_reason",
    "success",
)
_IS_TEXT = pl.col("text").is_not_null() | (pl.col("finish_reason") == "ill_formed")

Gains = Mapping[str, Sequence[float]]
"""Task -> gain of each retry at it, in [-1, 1]."""


def retry_gains(rollouts: pl.LazyFrame) -> dict[str, Gains]:
    """For each role of later attempts, the gain of each attempt: its success, 0 or 1, less the mean success
    of the first attempts at the task in other episodes. Attempts that could not be scored are left out, and
    so are tasks with a single episode, which have nothing to compare with.

    Args:
        rollouts: trajectories of one iteration, whose first attempts were made by one policy.
    """
    attempts = (
        rollouts.select(_COLUMNS)
        .filter(~_IS_TEXT, ~pl.col("role").is_in(sorted(NEVER_TRAINED)))
        .filter(was_scored())
        .collect()
    )
    firsts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for task, episode, success in (
        attempts.filter(pl.col("parent_trajectory_id").is_null())
        .select("task_id", "episode_id", "success")
        .iter_rows()
    ):
        firsts[task][episode] = int(success)
    gains: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for role, task, episode, success in (
        attempts.filter(pl.col("revision_index") > 0)
        .select("role", "task_id", "episode_id", "success")
        .iter_rows()
    ):
        others = len(firsts[task]) - (episode in firsts[task])
        if others:
            solved = sum(firsts[task].values()) - firsts[task].get(episode, 0)
            gains[role][task].append(int(success) - solved / others)
    return {role: dict(by_task) for role, by_task in gains.items()}


def gain_metrics(rollouts: pl.LazyFrame) -> dict[str, float]:
    """`gain_ROLE`: the mean gain of a role's retries, with the ends of its 95 % interval as `gain_ROLE_low`
    and `gain_ROLE_high`; where a single task was retried, or all tasks agree, these are -1 and 1."""
    metrics = {}
    for role, by_task in sorted(retry_gains(rollouts).items()):
        mean = mean_over_tasks(by_task)
        metrics[f"gain_{role}"] = mean.value
        low, high = -1.0, 1.0
        if mean.low is not None and mean.high is not None and mean.low < mean.high:
            low, high = mean.low, mean.high
        metrics |= {f"gain_{role}_low": max(-1.0, low), f"gain_{role}_high": min(1.0, high)}
    return metrics
