"""Scoring the trajectories of an evaluation: first attempts, greedy and sampled, and whole episodes.

A first attempt is a trajectory without a parent, whatever the roles of the method are. What was not scored is
left out of every rate, and counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

import polars as pl

from erl_pipeline.environments.interface import part_name
from erl_pipeline.statistics import Estimate, pass_at_k, sampled_success_rate, success_rate
from storage.tables.scored import was_scored

SCORED_COLUMNS = (
    "task_id",
    "episode_id",
    "parent_trajectory_id",
    "temperature",
    "success",
    "finish_reason",
)
_FIRST = pl.col("parent_trajectory_id").is_null()
_GREEDY = _FIRST & (pl.col("temperature") == 0)
_SAMPLED = _FIRST & (pl.col("temperature") > 0)


@dataclass(frozen=True)
class EvaluationScores:
    """The scores of one checkpoint on one list of tasks.

    `greedy` counts the first attempt at temperature 0, one for each task. `sampled` counts first attempts
    at other temperatures, and `pass_at_k` is the mean over tasks for k = 1, 2, 4, ... up to the attempts
    made of every task; a task counts for k if at least k of them were scored. `episode` counts tasks that the
    greedy episode solved, by its first attempt or by what followed it without memory, `episode_with_memory`
    the same with memory. None or empty where no such attempt was scored. `left_out` says by the names of the
    rates how many attempts or episodes each lacks because they were not scored.
    """

    greedy: Estimate | None
    sampled: Estimate | None
    pass_at_k: dict[int, float]
    episode: Estimate | None
    episode_with_memory: Estimate | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The same as flat numbers for a manifest; what was not measured is left out."""
        numbers: dict[str, float] = {}
        for name, estimate in (
            ("greedy_success", self.greedy),
            ("sampled_success", self.sampled),
            ("success_episode", self.episode),
            ("success_episode_with_memory", self.episode_with_memory),
        ):
            if estimate is not None:
                numbers |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        numbers |= {f"{name}_left_out": count for name, count in self.left_out.items() if count}
        return numbers | {f"pass_at_{k}": value for k, value in self.pass_at_k.items()}


def score_evaluation(trajectories: pl.LazyFrame, with_memory: pl.LazyFrame | None = None) -> EvaluationScores:
    """Score an evaluation's trajectories; only `SCORED_COLUMNS` are read. `with_memory`: the episodes, played
    with memory, of the tasks whose greedy first attempt failed; None where the evaluation had no memory."""
    rows = trajectories.select(SCORED_COLUMNS).collect()
    greedy = greedy_outcomes(rows)
    sampled = _sampled_outcomes(rows)
    most = max(map(len, sampled.values()), default=0)
    episodes = _episode_outcomes(rows)
    again = None if with_memory is None else with_memory.select(SCORED_COLUMNS).collect()
    remembering = {} if again is None else _with_memory(greedy, again)
    left_out = {
        "greedy_success": _tasks(rows.filter(_GREEDY)) - len(greedy),
        "sampled_success": rows.filter(_SAMPLED, ~was_scored()).height,
        "success_episode": _tasks(rows.filter(_GREEDY)) - len(episodes) if episodes else 0,
        "success_episode_with_memory": len(greedy) - len(remembering) if again is not None else 0,
    }
    return EvaluationScores(
        greedy=success_rate(list(greedy.values())) if greedy else None,
        sampled=sampled_success_rate(sampled) if sampled else None,
        pass_at_k={
            k: fmean(
                pass_at_k(len(results), sum(results), k) for results in sampled.values() if len(results) >= k
            )
            for k in (1, 2, 4, 8, 16, 32, 64)
            if k <= most
        },
        episode=success_rate(list(episodes.values())) if episodes else None,
        episode_with_memory=success_rate(list(remembering.values())) if remembering else None,
        left_out=left_out,
    )


def _with_memory(greedy: Mapping[str, bool], again: pl.DataFrame) -> dict[str, bool]:
    """Task -> whether its greedy episode with memory succeeded; only for episodes that were scored."""
    solved = again.filter(~_FIRST, "success")["task_id"]
    unknown = set(again.filter(~was_scored())["task_id"])
    outcomes = {**greedy, **dict.fromkeys(solved, True)}
    return {task_id: outcome for task_id, outcome in outcomes.items() if task_id not in unknown}


def _tasks(rows: pl.DataFrame) -> int:
    return rows["task_id"].n_unique()


def greedy_outcomes(rows: pl.DataFrame) -> dict[str, bool]:
    """Whether the greedy first attempt of each task succeeded, keyed by task; tasks whose attempt was not
    scored are left out.

    Raises ValueError when a task has several: these would not be independent outcomes.
    """
    greedy = rows.filter(_GREEDY)
    if greedy["task_id"].is_duplicated().any():
        raise ValueError("an evaluation has several greedy attempts of one task")
    return dict(greedy.filter(was_scored()).select("task_id", "success").iter_rows())


def greedy_success_by_part(trajectories: pl.LazyFrame) -> dict[str, float]:
    """For each part of a mixture, the share of tasks that a greedy first attempt solved, as
    `part.NAME.greedy_success`."""
    by_part: dict[str, list[bool]] = {}
    for task_id, solved in sorted(greedy_outcomes(trajectories.select(SCORED_COLUMNS).collect()).items()):
        by_part.setdefault(part_name(task_id), []).append(solved)
    return {f"part.{name}.greedy_success": fmean(solved) for name, solved in by_part.items()}


def _sampled_outcomes(rows: pl.DataFrame) -> dict[str, list[bool]]:
    sampled = rows.filter(_SAMPLED, was_scored())
    return dict(sampled.group_by("task_id", maintain_order=True).agg("success").iter_rows())


def _episode_outcomes(rows: pl.DataFrame) -> dict[str, bool]:
    """Task -> whether any attempt of its greedy episode succeeded; empty where nothing followed a first
    attempt. Episodes in which an attempt was not scored are left out."""
    if rows["parent_trajectory_id"].is_null().all():
        return {}
    greedy = rows.filter(_GREEDY)
    of_them = rows.filter(pl.col("episode_id").is_in(greedy["episode_id"].implode()))
    known = of_them.filter(was_scored().all().over("episode_id"))
    return dict(known.group_by("task_id", maintain_order=True).agg(pl.col("success").any()).iter_rows())
