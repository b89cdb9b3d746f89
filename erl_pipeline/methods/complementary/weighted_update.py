"""The update of the variant `weights`: fresh and stored trajectories, their losses multiplied by their
weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.methods.complementary.artifacts import SCORES, SCORES_FILE
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.rollouts.generate_rollouts import TRAJECTORIES, trajectory_files
from erl_pipeline.stages.training.training_record import reinforcement_rows
from erl_pipeline.stages.training.training_stage import ROLLOUTS, count_steps, open_trainer, training_result
from erl_pipeline.stages.training.update_policy import (
    UPDATE_POLICY,
    UpdateSettings,
    dropped_before_training,
    groups_by_role,
    reference_policy,
    training_sequences,
)
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence

if TYPE_CHECKING:
    from storage.tables.trajectories import Trajectory


def weighted_sequences(
    fresh: Sequence[TrainingSequence],
    replayed: Sequence[Trajectory],
    advantages: Mapping[str, float],
    weights: Mapping[str, float],
) -> list[TrainingSequence]:
    """All sequences, with their losses multiplied by constant weights. A sequence without such a weight,
    because none of its tokens was sampled, stays unchanged.

    Args:
        replayed: rows whose parents are the stored trajectories.
        advantages, weights: by the ids of fresh and of stored trajectories.
    """
    sources = {row.trajectory_id: row.parent_trajectory_id or "" for row in replayed}
    again = [trajectory_sequence(row, advantages[sources[row.trajectory_id]]) for row in replayed]
    return [
        replace(
            each, weight=each.weight * weights.get(sources.get(each.trajectory_id, each.trajectory_id), 1.0)
        )
        for each in (*fresh, *again)
    ]


def _compute(call: StageCall[UpdateSettings]) -> StageResult:
    """Train on the iteration's trajectories and on those that were drawn; write the new checkpoint."""
    from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES
    from storage.tables.parquet import read_rows
    from storage.tables.trajectories import read_trajectories

    settings, scores = call.settings, call.inputs[SCORES]
    rows = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))
    replayed = read_trajectories([scores.path(TRAJECTORIES)])
    table = list(read_rows([scores.path(SCORES_FILE)], EXPERIENCE_SCORES))
    sequences = weighted_sequences(
        training_sequences(rows, settings.objective),
        replayed,
        {row["trajectory_id"]: row["advantage"] for row in table},
        {row["trajectory_id"]: row["weight"] for row in table},
    )
    work = Reinforcement(
        sequences=sequences,
        objective=settings.objective,
        update=settings.update,
        seed=call.seed,
        reference=reference_policy(call),
    )
    with open_trainer(call) as trainer:
        metrics = trainer.reinforce(work, count_steps(call, settings.update.optimizer_steps))
        record = reinforcement_rows([*rows, *replayed], sequences, metrics.records)
        counters = {**groups_by_role(rows, settings.objective), **dropped_before_training(rows)}
        return training_result(call, trainer, metrics, record, counters)


WEIGHTED_UPDATE = Stage(
    name=UPDATE_POLICY.name,
    version=2,
    output="checkpoint",
    settings=UpdateSettings,
    compute=_compute,
    slice=UPDATE_POLICY.slice,
    code=("trainer", "method", "objective"),
    needs="device",
)
