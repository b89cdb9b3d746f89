"""The rows of an update's training record: what is known of each sequence, and what was done with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from erl_pipeline.episodes.roles import NEVER_TRAINED, is_trainable, trainable
from erl_pipeline.trainers.metrics import SequenceRecord
from storage.tables.scored import NOT_SCORED, NotScored

if TYPE_CHECKING:
    from erl_pipeline.trainers.sequences import TrainingSequence
    from storage.tables.training import SftRow
    from storage.tables.trajectories import Trajectory

_NEVER_TRAINED = SequenceRecord(weight=0.0, not_trained="never_trained")
_NOT_SCORED = {reason: SequenceRecord(weight=0.0, not_trained=reason) for reason in NOT_SCORED}
_TOO_OLD = SequenceRecord(weight=0.0, not_trained="too_old")


def reinforcement_rows(
    trajectories: Sequence[Trajectory],
    sequences: Sequence[TrainingSequence],
    records: Sequence[SequenceRecord],
    old: Collection[str] = (),
) -> Iterator[Mapping[str, Any]]:
    """A row for each trajectory; the first three arguments are in the same order. Trajectories of roles that
    are never trained, those that were not scored, and those whose ids are in `old` have neither sequence
    nor record, and get a row that says so.

    Raises ValueError where the trainer reported more or fewer than it was given.
    """
    from storage.tables.training import REINFORCEMENT

    # Matched by position: a trajectory that is replayed can occur twice.
    given = [row for row in trainable(trajectories) if row.trajectory_id not in old]
    trained = iter(list(zip(given, sequences, records, strict=True)))
    for row in trajectories:
        advantage, record = None, _NEVER_TRAINED
        if row.trajectory_id in old:
            record = _TOO_OLD
        elif is_trainable(row):
            _, sequence, record = next(trained)
            advantage = sequence.advantage
        elif row.role not in NEVER_TRAINED:
            record = _NOT_SCORED[cast(NotScored, row.finish_reason)]
        yield {
            **vars(record),
            "trajectory_id": row.trajectory_id,
            "sft_row_id": None,
            "kind": REINFORCEMENT,
            "episode_id": row.episode_id,
            "group_id": row.group_id,
            "subgroup": row.subgroup,
            "reward": row.reward,
            "success": row.success,
            "advantage": advantage,
            "task_id": row.task_id,
            "task_type": row.task_type,
            "role": row.role,
            "iteration": row.iteration,
            "policy_version": row.policy_version,
        }


def supervised_rows(
    rows: Sequence[SftRow], sequences: Sequence[TrainingSequence], records: Sequence[SequenceRecord]
) -> Iterator[Mapping[str, Any]]:
    """A row for each row of a dataset; all arguments are in the same order. Raises as
    `reinforcement_rows`."""
    from storage.tables.training import SUPERVISED

    for row, sequence, record in zip(rows, sequences, records, strict=True):
        yield {
            **vars(record),
            "trajectory_id": row.trajectory_id,
            "sft_row_id": row.sft_row_id,
            "kind": SUPERVISED,
            "episode_id": row.episode_id,
            "group_id": None,
            "subgroup": None,
            "reward": None,
            "success": None,
            "advantage": None,
            "task_id": row.task_id,
            "task_type": row.task_type,
            "role": sequence.role,
            "iteration": row.iteration,
            "policy_version": row.policy_version,
        }
