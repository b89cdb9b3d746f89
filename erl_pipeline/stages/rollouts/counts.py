"""Counting what a set of trajectories holds, whatever the roles of its method are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from erl_pipeline.environments.interface import part_name
from erl_pipeline.episodes.roles import NEVER_TRAINED
from erl_pipeline.statistics import mean_over_tasks
from storage.errors import EnvironmentFailed
from storage.tables.scored import (
    AS_ZERO,
    NOT_RATED,
    NOT_SCORED,
    NOT_TRAINABLE,
    NotScored,
    is_scored,
    scored,
    was_scored,
)
from storage.texts import REPLACED_TEXTS

if TYPE_CHECKING:
    import polars as pl

    from erl_pipeline.episodes.play import PlayedEpisodes
    from storage.tables.trajectories import Trajectory

_COUNT, _SUCCESSES, _NOT_SCORED = "_count", "_successes", "_not_scored"
_PART, _EPISODES = "part.", ".episodes"


def count_tokens(rows: Iterable[Trajectory]) -> dict[str, int]:
    """`generated_tokens` counts tokens that a model sampled; `prompt_tokens` counts each prompt once, and the
    environment's tokens between turns."""
    generated = read = 0
    for row in rows:
        generated += sum(row.response_mask)
        read += len(row.prompt_token_ids) + len(row.response_token_ids)
    return {"generated_tokens": generated, "prompt_tokens": read - generated}


def count_rollouts(rows: Sequence[Trajectory]) -> dict[str, int]:
    """Trajectories and successes by role, episodes, and tokens.

    An episode succeeded when one of its trajectories did. What was not scored is among the trajectories, and
    counted beside them too: attempts by their reason (`environment_errors`), trajectories by their role
    (`ROLE_not_scored`), and episodes in which anything was not scored (`episodes_not_scored`). Of these
    counters those that are 0 are left out.
    """
    counts = {
        "trajectories": len(rows),
        "episodes": len({row.episode_id for row in rows}),
        "episode_successes": _successes(rows),
        "truncated": sum(row.truncated for row in rows),
        "ill_formed": sum(row.finish_reason == "ill_formed" for row in rows),
        **count_tokens(rows),
    }
    left_out = {
        **attempts_not_scored(rows),
        "episodes_not_scored": len(_not_scored(rows)),
        "counted_as_zero": sum(row.finish_reason.endswith(AS_ZERO) for row in rows),
    }
    for role in dict.fromkeys(row.role for row in rows):
        of_role = [row for row in rows if row.role == role]
        of_them = scored(of_role)
        counts[f"{role}{_COUNT}"] = len(of_role)
        counts[f"{role}{_SUCCESSES}"] = sum(row.success for row in of_them)
        left_out[f"{role}{_NOT_SCORED}"] = len(of_role) - len(of_them)
    return counts | {name: count for name, count in left_out.items() if count}


SIGNAL_GROUPS = "groups_with_signal"
"""Counter of `signal_groups`, in iterations that play further tasks for want of a signal."""


def signal_groups(rows: Iterable[Trajectory]) -> int:
    """Groups whose first attempts, or those of one of its subgroups, have different rewards. A first attempt
    is a trajectory without a parent; what was not scored does not count."""
    rewards: defaultdict[tuple[str, str | None], set[float]] = defaultdict(set)
    for row in rows:
        if row.parent_trajectory_id is None and row.role not in NEVER_TRAINED and is_scored(row):
            rewards[row.group_id, row.subgroup].add(row.reward)
    return len({group for (group, _), found in rewards.items() if len(found) > 1})


def attempts_not_scored(rows: Iterable[Trajectory]) -> dict[str, int]:
    """How many attempts were not scored, by the name of the counter of each reason. A text that led to such
    an attempt is not counted beside it."""
    without = [row for row in rows if not is_scored(row)]
    led_to = {row.parent_trajectory_id for row in without}
    ended = Counter(row.finish_reason for row in without if row.trajectory_id not in led_to)
    return {reason_counter(reason): ended[reason] for reason in NOT_SCORED}


def reason_counter(reason: NotScored) -> str:
    return reason if reason in (NOT_RATED, NOT_TRAINABLE) else f"{reason}s"


def _not_scored(rows: Iterable[Trajectory]) -> set[str]:
    """The episodes in which something was not scored: whether they succeeded is not known."""
    return {row.episode_id for row in rows if not is_scored(row)}


def _successes(rows: Sequence[Trajectory]) -> int:
    """How many episodes succeeded, of those that are known to have succeeded or failed."""
    return len({row.episode_id for row in rows if row.success} - _not_scored(rows))


def replaced_texts(plays: Iterable[PlayedEpisodes], others: int = 0) -> dict[str, int]:
    """In how many texts from outside a character was replaced, and in `others`; empty for none."""
    count = others + sum(played.counters.get(REPLACED_TEXTS, 0) for played in plays)
    return {REPLACED_TEXTS: count} if count else {}


def count_parts(rows: Sequence[Trajectory]) -> dict[str, int]:
    """For each part of a mixture: episodes, those whose first attempt succeeded, and those in which any did.
    A first attempt is a trajectory without a parent. Attempts and episodes that were not scored are left
    out."""
    counts: dict[str, int] = {}
    for name in sorted({part_name(row.task_id) for row in rows}):
        of_part = [row for row in rows if part_name(row.task_id) == name]
        first = [row for row in scored(of_part) if row.parent_trajectory_id is None]
        episodes = {row.episode_id for row in of_part} - _not_scored(of_part)
        counts[f"{_PART}{name}{_EPISODES}"] = len(episodes)
        counts[f"{_PART}{name}.first"] = len(first)
        counts[f"{_PART}{name}.solved_first"] = sum(row.success for row in first)
        counts[f"{_PART}{name}.solved"] = _successes(of_part)
    return counts


def part_rates(counters: Mapping[str, int]) -> dict[str, float]:
    """For each part of a mixture, the share of episodes whose first attempt succeeded, and of those in which
    any did."""
    rates = {}
    for name, episodes in counters.items():
        if name.startswith(_PART) and name.endswith(_EPISODES):
            part = name.removesuffix(_EPISODES)
            if first := counters[f"{part}.first"]:
                rates[f"{part}.success_first"] = counters[f"{part}.solved_first"] / first
            if episodes:
                rates[f"{part}.success_episode"] = counters[f"{part}.solved"] / episodes
    return rates


def trajectories_by_role(counters: Mapping[str, int | float]) -> dict[str, int]:
    """How many trajectories of each role `count_rollouts` has counted."""
    roles = [name.removesuffix(_SUCCESSES) for name in counters if name.endswith(_SUCCESSES)]
    return {role: int(counters[f"{role}{_COUNT}"]) for role in roles if f"{role}{_COUNT}" in counters}


def success_rates(counters: Mapping[str, int]) -> dict[str, float]:
    """Shares of trajectories that succeeded, by role, and of episodes that did, both among those that were
    scored. A rate without trials is left out, and so is that of a role that attempts nothing."""
    rates = {}
    for name, count in counters.items():
        role = name.removesuffix(_COUNT)
        tries = count - counters.get(f"{role}{_NOT_SCORED}", 0)
        if role != name and tries and role not in NEVER_TRAINED:
            rates[f"success_{role}"] = counters[f"{role}{_SUCCESSES}"] / tries
    if episodes := counters.get("episodes", 0) - counters.get("episodes_not_scored", 0):
        rates["success_episode"] = counters["episode_successes"] / episodes
    return rates


_COLUMNS = ("role", "parent_trajectory_id", "finish_reason", "reward")


def graded_rewards(rollouts: pl.LazyFrame) -> dict[str, float]:
    """`reward_ROLE`: the mean reward of the attempts that episodes begin with, by role, without those that
    could not be scored. A role all of whose rewards are 0 or 1 is left out: its success rate says as much.
    `rollouts`: trajectories of one iteration."""
    import polars as pl

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


ALLOWED_SHARE = 0.01
_REASON: NotScored = "scorer_error"


def require_scored(counters: Mapping[str, int], rollouts: pl.LazyFrame) -> None:
    """Raise `EnvironmentFailed`, naming a task, where more than `ALLOWED_SHARE` of an iteration's episodes
    could not be scored.

    Args:
        counters: the counters of all shards, added up.
        rollouts: the trajectories of the iteration.
    """
    import polars as pl

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


Gains = Mapping[str, Sequence[float]]
"""Task -> gain of each retry at it, in [-1, 1]."""


def retry_gains(rollouts: pl.LazyFrame) -> dict[str, Gains]:
    """For each role of later attempts, the gain of each attempt: its success, 0 or 1, less the mean success
    of the first attempts at the task in other episodes. Attempts that could not be scored are left out, and
    so are tasks with a single episode, which have nothing to compare with. `rollouts`: trajectories of one
    iteration, whose first attempts were made by one policy."""
    import polars as pl

    is_text = pl.col("text").is_not_null() | (pl.col("finish_reason") == "ill_formed")
    attempts = (
        rollouts.filter(~is_text, ~pl.col("role").is_in(sorted(NEVER_TRAINED)), was_scored())
        .select("task_id", "episode_id", "role", "parent_trajectory_id", "revision_index", "success")
        .collect()
    )
    if not (attempts["revision_index"] > 0).any():
        return {}
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
