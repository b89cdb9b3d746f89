"""Candidates for replay, read from the rollouts that hold them, and the files of what is replayed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from erl_pipeline.episodes.rows import group_id
from erl_pipeline.methods.exgrpo.settings import FIRST_ATTEMPT, REPLAYED, Entropy, Pick
from erl_pipeline.stages.names import trajectory_files
from erl_pipeline.stages.training.update_policy import REPLAYED_FILE
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.errors import InputError
from storage.tables.parquet import TableFormat, write_rows
from storage.tables.trajectories import Trajectory, scan_trajectories, trajectory_id, write_trajectories

if TYPE_CHECKING:
    from erl_pipeline.environments.interface import Task
    from erl_pipeline.trainers.interface import Trainer
    from storage.artifacts.store import ArtifactStore


@dataclass(frozen=True)
class Candidate:
    """A stored attempt, and the id of the rollouts that it comes from."""

    row: Trajectory
    rollouts_id: str


def usable_members(
    members: pl.DataFrame, iteration: int, max_age: int | None, max_per_task: int | None
) -> pl.DataFrame:
    """Members that are young enough, and of each task only the newest `max_per_task`; in the order in which
    they were stored.

    `max_age` is the largest age at `iteration`, in iterations.
    """
    if max_age is not None:
        members = members.filter(pl.col("iteration") >= iteration - max_age)
    if max_per_task is not None:
        newer = pl.col("trajectory_id").cum_count(reverse=True).over("task_id")
        members = members.filter(newer <= max_per_task)
    return members


def read_candidates(store: ArtifactStore, members: pl.DataFrame) -> list[Candidate]:
    """The stored attempts of `members`, in their order. Raises InputError for one that is gone."""
    rollouts = dict(members.select("trajectory_id", "rollouts_id").iter_rows())
    files = [
        path
        for rollouts_id in dict.fromkeys(rollouts.values())
        for path in trajectory_files(store.open(rollouts_id), store)
    ]
    wanted = pl.Series(list(rollouts), dtype=pl.String)
    found = scan_trajectories(files).filter(pl.col("trajectory_id").is_in(wanted.implode())).collect()
    rows = {row["trajectory_id"]: _trajectory(row) for row in found.iter_rows(named=True)}
    for row_id, rollouts_id in rollouts.items():
        if row_id not in rows:
            raise InputError(f"trajectory {row_id} is to be replayed, but is not in rollouts {rollouts_id}")
    return [Candidate(rows[row_id], rollouts_id) for row_id, rollouts_id in rollouts.items()]


def _trajectory(row: Mapping[str, object]) -> Trajectory:
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Trajectory(**values)  # type: ignore[arg-type]


def with_trainer_logprobs(
    candidates: Sequence[Candidate], logprobs: Mapping[str, tuple[float, ...] | None]
) -> list[Candidate]:
    """The same candidates, with the trainer's log-probabilities in place of the sampler's.

    Raises InputError for an attempt that has none.
    """
    found = []
    for candidate in candidates:
        own = logprobs.get(candidate.row.trajectory_id)
        if own is None:
            raise InputError(
                f"trajectory {candidate.row.trajectory_id} of iteration {candidate.row.iteration} was stored "
                "without log-probabilities of the trainer, and method.replay.importance: trainer needs them; "
                "set it to behaviour, as it was when the attempt was stored"
            )
        found.append(replace(candidate, row=replace(candidate.row, behaviour_logprobs=own)))
    return found


def require_trainable(
    candidates: Sequence[Candidate], training: Collection[str], held_out: Sequence[Task], payloads: set[str]
) -> None:
    """Raise InputError, which names it, for a stored attempt at a task that is held out or is not a training
    task. Also for one whose log-probabilities cannot be those of sampled tokens.

    Args:
        training: ids of the training tasks.
        payloads: payloads of the held-out tasks, as trajectories hold them.
    """
    held_out_ids = {task.task_id for task in held_out}
    for row in (candidate.row for candidate in candidates):
        name = f"trajectory {row.trajectory_id} of iteration {row.iteration}"
        if row.task_id in held_out_ids or row.task_payload in payloads:
            raise InputError(
                f"{name} is of task {row.task_id}, which is held out (evaluation.tasks); "
                "it cannot be replayed"
            )
        if row.task_id not in training:
            raise InputError(f"{name} is of task {row.task_id}, which is no training task of this run")
        sampled = [
            logprob for logprob, bit in zip(row.behaviour_logprobs, row.response_mask, strict=True) if bit
        ]
        if row.temperature <= 0 or not all(map(math.isfinite, sampled)):
            raise InputError(
                f"{name} has no log-probabilities of sampled tokens (temperature {row.temperature:g}), which "
                "method.replay needs"
            )


def mean_entropies(
    rows: Sequence[Trajectory], trainer: Trainer, kind: Entropy, microbatch_tokens: int
) -> list[float]:
    """Mean entropy over the trained tokens of each row, in nats, under the trainer's policy; see
    `ReplayConfig.entropy`. Padding and the environment's tokens are left out."""
    sequences = [trajectory_sequence(row) for row in rows]
    if kind == "vocabulary":
        values = trainer.entropies(sequences, microbatch_tokens)
    else:
        logprobs = trainer.logprobs(sequences, microbatch_tokens)
        values = [-each if kind == "nll" else -each * np.exp(each) for each in logprobs]
    return [float(each.astype(np.float64).mean()) for each in values]


def pick_one(entropies: Sequence[float], pick: Pick) -> int:
    """Index of the lowest or highest entropy; among equal ones, the first."""
    places = range(len(entropies))
    if pick == "highest":
        return max(places, key=lambda place: (entropies[place], -place))
    return min(places, key=lambda place: (entropies[place], place))


SELECTION_FILE = "replay/selection.parquet"
SELECTION = TableFormat(
    name="replay_selection",
    version=1,
    schema=pa.schema(
        [
            pa.field("task_id", pa.string(), nullable=False),  # the task
            pa.field("bucket", pa.int32()),  # successes of its group; null where no buckets were drawn
            pa.field("bucket_probability", pa.float64()),  # chance of that bucket
            pa.field("trajectory_id", pa.string(), nullable=False),  # the stored attempt
            pa.field("rollouts_id", pa.string(), nullable=False),  # the artifact of its iteration's rollouts
            pa.field("candidates", pa.int32(), nullable=False),  # stored attempts to choose from
            pa.field("entropy", pa.float64()),  # of the chosen one; null where none was computed
            pa.field("entropy_kind", pa.string()),  # how it was computed
            pa.field("entropy_policy_version", pa.string()),  # the policy under which it was computed
        ]
    ),
    dictionary=("rollouts_id", "entropy_kind", "entropy_policy_version"),
)


@dataclass(frozen=True)
class Selected:
    """A stored attempt that is replayed, and how it was chosen.

    `bucket` and its probability are None where buckets were not drawn; `entropies` are those of all
    candidates of the task, the chosen one's first, and empty where none were computed.
    """

    chosen: Candidate
    candidates: int
    bucket: int | None
    probability: float | None
    entropies: tuple[float, ...] = ()


def replay_row(source: Trajectory, recipe_id: str, iteration: int, slot: int) -> Trajectory:
    """A stored attempt as it is trained on again: in the group of the fresh attempts of an iteration, with
    the policy version and the log-probabilities that it was stored with.

    Args:
        slot: its place in the group, which no fresh attempt has.
    """
    return replace(
        source,
        trajectory_id=trajectory_id(recipe_id, source.trajectory_id, REPLAYED),
        parent_trajectory_id=source.trajectory_id,
        iteration=iteration,
        role=REPLAYED,
        sample_index=slot,
        group_id=group_id(iteration, source.task_id, FIRST_ATTEMPT, 0),
    )


def write_replay(
    folder: Path,
    rows: Sequence[Trajectory],
    selected: Sequence[Selected],
    entropy: Entropy | None,
    policy_version: str,
) -> dict[str, int]:
    """Write both files; returns the number of rows of each.

    Args:
        entropy: the kind that was computed, under the policy `policy_version`; None where none was.
    """
    (folder / REPLAYED_FILE).parent.mkdir()
    selection = (
        {
            "task_id": each.chosen.row.task_id,
            "bucket": each.bucket,
            "bucket_probability": each.probability,
            "trajectory_id": each.chosen.row.trajectory_id,
            "rollouts_id": each.chosen.rollouts_id,
            "candidates": each.candidates,
            "entropy": each.entropies[0] if each.entropies else None,
            "entropy_kind": entropy,
            "entropy_policy_version": None if entropy is None else policy_version,
        }
        for each in selected
    )
    return {
        REPLAYED_FILE: write_trajectories(folder / REPLAYED_FILE, rows),
        SELECTION_FILE: write_rows(folder / SELECTION_FILE, selection, SELECTION),
    }
