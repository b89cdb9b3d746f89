"""The files of what an iteration replays: the trajectories, and how each was selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from erl_pipeline.episodes.rows import group_id
from erl_pipeline.methods.exgrpo.candidates import Candidate
from erl_pipeline.methods.exgrpo.settings import FIRST_ATTEMPT, REPLAYED, Entropy
from erl_pipeline.stages.training.replayed_rows import REPLAYED_FILE
from storage.tables.parquet import TableFormat, write_rows
from storage.tables.trajectories import Trajectory, trajectory_id, write_trajectories

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
