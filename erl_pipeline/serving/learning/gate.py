"""The gate before an alias: is a new checkpoint at least nearly as good as the one that serves?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

import polars as pl

from erl_pipeline.serving.learning.collect import SealedBatch, sealed_batches
from erl_pipeline.serving.settings import GateSettings
from erl_pipeline.stages.evaluation.evaluate import EVALUATE, EVALUATION
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.statistics import bootstrap_low
from storage.artifacts.store import ArtifactStore
from storage.runs.run import Run
from storage.serving.aliases import Verdict
from storage.serving.collected import SERVED, SERVED_TRAJECTORIES
from storage.tables.parquet import scan_files
from storage.tables.scored import NOT_TRAINABLE, REDACTED_NOT_TRAINABLE, was_scored
from storage.tables.sequences import further_files
from storage.tables.trajectories import TRAJECTORIES as TRAJECTORY_TABLE
from storage.tables.trajectories import scan_trajectories
from storage.texts import counted

_MOST_NOT_SCORED = 0.1
"""The share of the held-out tasks of the old checkpoint that may be without a score with the new one."""
_RATED_ALL_THE_SAME = (NOT_TRAINABLE, REDACTED_NOT_TRAINABLE)
Numbers = Mapping[str, float | int | str | bool]


@dataclass(frozen=True)
class Comparison:
    """How much higher the mean reward of a new checkpoint is, with the lower confidence bound, and what else
    is to be shown with it. `lacks`: why it says too little, whatever the bound; empty if it does not."""

    difference: float
    low: float
    beside: Numbers
    lacks: str = ""

    def numbers(self, prefix: str) -> Numbers:
        """The same as flat numbers."""
        found = {"difference": self.difference, "low": self.low, **self.beside}
        return {f"{prefix}_{name}": value for name, value in found.items()}


def compare_held_out(
    before: Mapping[str, float], after: Mapping[str, float], confidence: float
) -> Comparison | None:
    """Two checkpoints on the same held-out tasks, task -> mean reward; None where they share none.

    It says too little where many that were scored with the first are not scored with the second, as of a
    policy that goes on until its time is over: those left may be the easy ones.
    """
    tasks = sorted(before.keys() & after.keys())
    if not tasks:
        return None
    differences = [after[task] - before[task] for task in tasks]
    low = bootstrap_low([differences], [1], confidence)
    missing = len(before.keys() - after.keys())
    lacks = ""
    if missing > _MOST_NOT_SCORED * len(before):
        lacks = f"{missing} of {len(before)} held-out tasks are not scored any more"
    return Comparison(fmean(differences), low, {"tasks": len(tasks), "not_scored": missing}, lacks)


def compare_feedback(
    store_uri: str, served: str, new: str, old: str, settings: GateSettings
) -> Comparison | None:
    """Two checkpoints by what people said of their episodes, in all batches of a served run; None where one
    has fewer rated episodes than `min_episodes`, or fewer users than `min_users`.

    Each user counts once, with the mean of the episodes: a canary is drawn by user, and what one user says is
    alike. An episode without a user stands for itself. Episodes in which both checkpoints answered say
    nothing of either, and are counted apart. The rated shares stand beside it: raters select themselves, so
    where shares differ, means may not be comparable.
    """
    found = _rewards(ArtifactStore(store_uri), sealed_batches(store_uri, served))
    if found is None:
        return None
    rows = found.filter(pl.col("policy_version").is_in([new, old]))
    alone = rows.filter("is_alone")
    episodes = {each: alone.filter(pl.col("policy_version") == each) for each in (new, old)}
    rated = {each: rows.drop_nulls("reward") for each, rows in episodes.items()}
    users = {
        each: rows.group_by("asker").agg(pl.col("reward").mean()).sort("asker")["reward"].to_list()
        for each, rows in rated.items()
    }
    if (
        min(map(len, rated.values())) < settings.min_episodes
        or min(map(len, users.values())) < settings.min_users
    ):
        return None
    return Comparison(
        fmean(users[new]) - fmean(users[old]),
        bootstrap_low([users[new], users[old]], [1, -1], settings.confidence),
        {
            "episodes_new": len(rated[new]),
            "episodes_old": len(rated[old]),
            "users_new": len(users[new]),
            "users_old": len(users[old]),
            "episodes_of_both": len(rows) - len(alone),
            "rated_share_new": len(rated[new]) / len(episodes[new]),
            "rated_share_old": len(rated[old]) / len(episodes[old]),
        },
    )


def _rewards(store: ArtifactStore, batches: Sequence[SealedBatch]) -> pl.DataFrame | None:
    """A row for each episode: `policy_version`, its `reward` (null where nobody rated it), the `asker`, and
    whether one checkpoint alone has answered in it. None without batches.

    Answers that cannot be trained on, such as those at temperature 0, have been rated all the same.
    """
    artifacts = [store.open(batch.trajectories_id) for batch in batches]
    if not artifacts:
        return None
    rows = scan_files([each.rows_path(TRAJECTORIES) for each in artifacts], TRAJECTORY_TABLE)
    users = scan_files([each.rows_path(SERVED) for each in artifacts], SERVED_TRAJECTORIES)
    further = further_files(artifacts)
    first = rows.select(
        "trajectory_id",
        "policy_version",
        reward=pl.when(was_scored() | pl.col("finish_reason").is_in(_RATED_ALL_THE_SAME)).then("reward"),
    )
    asker = pl.when(pl.col("user") == "").then("trajectory_id").otherwise(pl.concat_str("tenant", "user"))
    found = first.join(users.select("trajectory_id", asker=asker), on="trajectory_id", how="left").collect()
    if not further:
        return found.with_columns(is_alone=pl.lit(value=True))
    others = scan_files(further, TRAJECTORY_TABLE).select(
        pl.col("parent_trajectory_id").alias("trajectory_id"), pl.col("policy_version").alias("other")
    )
    joined = found.lazy().join(others, on="trajectory_id")
    mixed = (
        joined.filter(pl.col("policy_version") != pl.col("other")).select("trajectory_id").unique().collect()
    )
    return found.with_columns(is_alone=~pl.col("trajectory_id").is_in(mixed["trajectory_id"].to_list()))


def held_out_rewards(store: ArtifactStore, run: Run, iteration: int) -> dict[str, float]:
    """Held-out task -> mean reward of its first attempts, greedy and sampled, after an iteration of a run;
    empty where it was not evaluated."""
    found = [
        entry.artifact_id
        for entry in run.stages()
        if (entry.stage, entry.iteration) == (EVALUATE.name, iteration)
    ]
    if not found:
        return {}
    rows = scan_trajectories([store.open(found[0]).rows_path(EVALUATION)])
    first = rows.filter(pl.col("parent_trajectory_id").is_null(), was_scored())
    means = first.group_by("task_id").agg(pl.col("reward").mean()).sort("task_id").collect()
    return dict(means.iter_rows())


def judge(
    store_uri: str,
    served: str,
    night: Run,
    new: str,
    old: str,
    iterations: int,
    settings: GateSettings,
) -> Verdict:
    """The verdict on the checkpoint of a night, against the one that it was trained from.

    It passes where the lower bound on held-out tasks, and that of feedback if both have enough, are at least
    `-held_out_drop`. Without held-out tasks nothing says that it is as good, and it does not pass, nor where
    many of them are not scored any more.
    """
    store = ArtifactStore(store_uri)
    held_out = compare_held_out(
        held_out_rewards(store, night, 0), held_out_rewards(store, night, iterations), settings.confidence
    )
    feedback = compare_feedback(store_uri, served, new, old, settings)
    return verdict(held_out, feedback, new, old, night.name, settings)


def verdict(
    held_out: Comparison | None,
    feedback: Comparison | None,
    new: str,
    old: str,
    run: str,
    settings: GateSettings,
) -> Verdict:
    """What two comparisons say together."""
    least = -settings.held_out_drop
    numbers: dict[str, float | int | str | bool] = {
        "confidence": settings.confidence,
        "held_out_drop": settings.held_out_drop,
    }
    reasons, passed = [], held_out is not None
    if held_out is None:
        reasons.append("there are no held-out tasks to compare on")
    for name, comparison in (("held_out", held_out), ("feedback", feedback)):
        if comparison is None:
            continue
        numbers |= comparison.numbers(name)
        reached = comparison.low >= least
        passed = passed and reached and not comparison.lacks
        what = "held-out reward" if name == "held_out" else "feedback"
        tasks = int(comparison.beside.get("tasks", 0))
        over = f" over {counted(tasks, 'task')}" if tasks else ""
        reasons.append(
            f"{what} {comparison.difference:+.3f}, lower bound {comparison.low:+.3f}{over}, needed "
            f"{least:+.3f}: {'reached' if reached else 'not reached'}"
        )
        if comparison.lacks:
            reasons.append(comparison.lacks)
    return Verdict(
        checkpoint_id=new,
        against=old,
        run=run,
        passed=passed,
        reason="; ".join(reasons),
        numbers=numbers,
        decided=datetime.now(UTC),
    )
