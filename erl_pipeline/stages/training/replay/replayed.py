"""The rows that an update replays: of older policies, in an artifact of kind `replay`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from erl_pipeline.trainers.sequences import TrainingSequence
from storage.artifacts.artifact import Artifact

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory

REPLAY = "replay"
"""Name of the input through which an update gets what it replays."""

REPLAYED_FILE = "replay/trajectories.parquet"

BEGUN, ON_POLICY_WEIGHT = "begun", "on_policy_weight"
"""A counter, 1 once replay has begun, and a metric: see `ReplayedRows`."""


@dataclass(frozen=True)
class ReplayedRows:
    """Trajectories that are trained on beside fresh ones; each is in the group of its fresh ones.

    `begun` is false until a run begins to replay: until then its updates are of fresh rows alone. With an
    `on_policy_weight`, losses of fresh rows are multiplied by it, and those of replayed ones by 1 minus it.
    """

    rows: Sequence[Trajectory] = ()
    begun: bool = False
    on_policy_weight: float | None = None


def read_replayed(artifact: Artifact | None) -> ReplayedRows:
    """The rows that an artifact holds for replay; none for None."""
    from storage.tables.trajectories import read_trajectories

    if artifact is None:
        return ReplayedRows()
    manifest = artifact.manifest
    return ReplayedRows(
        rows=read_trajectories([artifact.path(REPLAYED_FILE)]),
        begun=bool(manifest.counters[BEGUN]),
        on_policy_weight=manifest.metrics.get(ON_POLICY_WEIGHT),
    )


def weighed(sequences: Iterable[TrainingSequence], replayed: ReplayedRows) -> list[TrainingSequence]:
    """The sequences of an update, with the weights of fresh and replayed ones."""
    fresh = replayed.on_policy_weight
    if fresh is None:
        return list(sequences)
    ids = {row.trajectory_id for row in replayed.rows}
    return [
        replace(each, weight=each.weight * (1.0 - fresh if each.trajectory_id in ids else fresh))
        for each in sequences
    ]
