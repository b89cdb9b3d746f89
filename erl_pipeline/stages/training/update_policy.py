"""The stage that updates the policy by reinforcement learning, on fresh trajectories and on those that are
replayed: of older policies, in an artifact of kind `replay`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from erl_pipeline.config.distillation import DISTILLED
from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.config.self_distillation import SelfDistillationConfig
from erl_pipeline.episodes.roles import NEVER_TRAINED, is_trainable, trainable
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.names import ROLLOUTS, further_sequence_files, trajectory_files
from erl_pipeline.stages.training import distillation, training_stage
from erl_pipeline.stages.training.advantages import (
    averaged_subgroups,
    further_sequences,
    groups_by_role,
    training_sequences,
)
from erl_pipeline.stages.training.replay.plan import replayed_in
from erl_pipeline.stages.training.replay.replayed import REPLAY, read_replayed, weighed
from erl_pipeline.stages.training.score_teacher import plan_scores, taught_sequences
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import TrainingSequence, observed_sequence, supervised_sequence
from storage.tables.scored import NOT_SCORED, is_scored

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.artifacts.manifest import Manifest
    from storage.artifacts.store import ArtifactStore
    from storage.tables.trajectories import Trajectory


def young_policies(store: ArtifactStore, checkpoint: Manifest, max_age: int) -> dict[str, int]:
    """Id -> age of a checkpoint and of those it was trained from, up to `max_age` iterations before it.

    The age counts iterations back along the line of checkpoints; all checkpoints of one iteration have the
    same age. A stage that comes again begins another iteration, even where both have the same number, as in
    runs that go on from each other. Only the manifests that are needed for this are read.
    """
    ages: dict[str, int] = {}
    age, newer, at = 0, checkpoint, checkpoint
    stages: set[str] = set()
    while True:
        if at.iteration != newer.iteration or at.stage in stages:
            age, stages = age + 1, set()
        stages.add(at.stage)
        if age > max_age:
            return ages
        ages[at.artifact_id] = age
        before = store.find(at.inputs[CHECKPOINT]) if CHECKPOINT in at.inputs else None
        if before is None:
            return ages
        newer, at = at, before


def too_old(rows: Iterable[Trajectory], young: Iterable[str]) -> frozenset[str]:
    """Ids of the trainable trajectories that none of the `young` policies sampled."""
    policies = set(young)
    return frozenset(
        row.trajectory_id for row in rows if is_trainable(row) and row.policy_version not in policies
    )


REFERENCE = "reference"
SCORED = "teacher"
"""Name of the input through which an update gets the scores of self-distillation."""


class UpdateSettings(training_stage.TrainingSettings):
    """The part of the configuration that an update reads."""

    objective: ObjectiveConfig
    update: UpdateConfig
    replay: ReplayLoss | None = None
    """The loss of replayed trajectories; None where there are none."""
    self_distillation: SelfDistillationConfig | None = Field(default=None, exclude_if=lambda how: how is None)
    """How scores of teachers are combined with the objective; None where an update needs only what they add
    to advantages."""


class AgedUpdateSettings(UpdateSettings):
    """The same for an update that leaves out what is too old (`pipeline.too_old: drop`)."""

    max_age: int


def plan_update(planner: Planner, state: RunState, iteration: int, rollouts: str) -> RunState:
    """Plan the training of the policy on rollouts, with what the configuration adds to the update of any
    method: replay, self-distillation, distillation. Returns the state after it. The reference of the KL term,
    where it is on, is the checkpoint that the policy began with."""
    inputs = {ROLLOUTS: rollouts}
    changed: dict[str, Any] = {}
    replayed = replayed_in(planner, iteration)
    if replayed is not None:
        inputs[REPLAY], changed["replay"] = replayed
    if planner.config.self_distillation is not None:
        how = planner.config.self_distillation.at(iteration)
        changed["self_distillation"] = None if how is None else how.for_update
        if how is not None:
            inputs[SCORED] = plan_scores(planner, state, iteration, rollouts, POLICY, how)
    settings = planner.shared(planner.settings(UPDATE_POLICY).model_copy(update=changed)) if changed else None
    if planner.config.objective.needs_reference:
        inputs[REFERENCE] = state.initial[POLICY]
    form = planner.config.distillation_form
    if form == "joint":
        inputs |= distillation.plan_datasets(planner, iteration, rollouts)
    state = training_stage.plan_training(planner, state, iteration, UPDATE_POLICY, inputs, POLICY, settings)
    if form == "separate":
        datasets = distillation.plan_datasets(planner, iteration, rollouts)
        state = training_stage.plan_training(
            planner, state, iteration, distillation.FINE_TUNE, datasets, POLICY
        )
    return state


def _slice(config: RunConfig, _sources: Sources) -> UpdateSettings:
    how = config.self_distillation
    read: dict[str, Any] = {
        "objective": config.objective,
        "update": config.update,
        "self_distillation": None if how is None else how.for_update,
        **training_stage.training_settings(config),
    }
    pipeline = config.pipeline
    if pipeline.too_old == "drop":
        return AgedUpdateSettings(**read, max_age=pipeline.max_age)
    return UpdateSettings(**read)


def _compute(call: StageCall[UpdateSettings]) -> StageResult:
    """Train on the trajectories of the rollouts and on those replayed beside them; write the new checkpoint.
    Roles that are never trained, and trajectories that were not scored or are too old, are left out."""
    from storage.tables.trajectories import read_trajectories

    settings = call.settings
    replayed = read_replayed(call.inputs.get(REPLAY))
    rollouts, store = call.inputs[ROLLOUTS], call.resources.store
    attempts = [*read_trajectories(trajectory_files(rollouts, store)), *replayed.rows]
    further = read_trajectories(further_sequence_files(rollouts, store))
    rows = [*attempts, *further]
    old = _too_old(call, rows)
    # Further sequences have the advantage of their attempt, so they go with it, whoever sampled them.
    old |= {row.trajectory_id for row in trainable(further) if row.parent_trajectory_id in old}
    given = [row for row in attempts if row.trajectory_id not in old]
    young = [row for row in further if row.trajectory_id not in old]
    sequences = taught_sequences(
        training_sequences(given, settings.objective), call.inputs.get(SCORED), settings.self_distillation
    )
    if settings.objective.subgroup_losses == "averaged":
        sequences = averaged_subgroups(trainable(given), sequences, settings.objective)
    # Older datasets of a branch may have a chain, whose rows are trained here by their advantages.
    distilled = [row for row in distillation.read_datasets(call.inputs) if row.role in (None, DISTILLED)]
    own = weighed([*sequences, *further_sequences(young, sequences, settings.objective)], replayed)
    observed = observed_sequences(given, settings.objective.observation_coefficient)
    work = Reinforcement(
        sequences=[*own, *map(supervised_sequence, distilled), *observed],
        objective=settings.objective,
        update=settings.update,
        seed=call.seed,
        reference=training_stage.other_policy(call, REFERENCE),
        replay=settings.replay if replayed.begun else None,
        distillation=None if settings.self_distillation is None else settings.self_distillation.objective,
    )
    counters = {**groups_by_role(given, settings.objective), **dropped_before_training(rows, old)}
    return training_stage.reinforce(call, work, rows, counters, old, distilled)


def _too_old(call: StageCall[UpdateSettings], rows: Sequence[Trajectory]) -> frozenset[str]:
    """Ids of the trajectories that are left out for their age; none without a limit on age."""
    if not isinstance(call.settings, AgedUpdateSettings):
        return frozenset()
    checkpoint = call.inputs[CHECKPOINT].manifest
    return too_old(rows, young_policies(call.resources.store, checkpoint, call.settings.max_age))


def dropped_before_training(trajectories: Sequence[Trajectory], old: Collection[str] = ()) -> dict[str, int]:
    """Counters, without those that are 0: trajectories of roles that are never trained, those that were not
    scored, by reason, and those whose ids are in `old`."""
    left_out = [row for row in trajectories if row.role not in NEVER_TRAINED and not is_scored(row)]
    counters = {
        "dropped_never_trained": sum(row.role in NEVER_TRAINED for row in trajectories),
        **{
            f"dropped_{reason}": sum(row.finish_reason == reason for row in left_out) for reason in NOT_SCORED
        },
        "dropped_too_old": sum(row.trajectory_id in old for row in trajectories),
    }
    return {name: count for name, count in counters.items() if count}


def observed_sequences(trajectories: Sequence[Trajectory], weight: float) -> list[TrainingSequence]:
    """What environments said in trajectories, to be predicted with this weight; none without weight. What was
    not scored is left out, since the environment itself may have failed."""
    if not weight:
        return []
    found = (observed_sequence(row, weight) for row in trainable(trajectories))
    return [each for each in found if each is not None]


UPDATE_POLICY = Stage(
    name="update_policy",
    version=12,
    output="checkpoint",
    settings=UpdateSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer", "objective"),
    needs="training",
)
