"""The stage that updates the policy by reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import (
    BASE,
    CHECKPOINT,
    checkpoint_parts,
    load_checkpoint,
    weights_settings,
)
from erl_pipeline.stages.rollouts import trajectory_files
from erl_pipeline.stages.training import (
    ROLLOUTS,
    TrainingSettings,
    count_steps,
    open_trainer,
    training_result,
)
from erl_pipeline.trainers.interface import LoadPolicy, Reinforcement
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.tables.trajectories import Trajectory

REFERENCE = "reference"


class UpdateSettings(TrainingSettings):
    """What an update reads of the configuration."""

    objective: ObjectiveConfig
    update: UpdateConfig


def plan_update(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    model: str = POLICY,
    settings: UpdateSettings | None = None,
    stage: Stage[UpdateSettings] | None = None,
    further: Mapping[str, str] | None = None,
) -> RunState:
    """Train a model on rollouts; the state after it. The KL term, where it is on, refers to the checkpoint
    that the model began with.

    Args:
        settings: other ones than the configuration's.
        stage: another one that updates, with the same name.
        further: inputs that it has beside.
    """
    inputs = {**state.model_inputs(model), ROLLOUTS: rollouts, **(further or {})}
    if planner.config.objective.needs_reference:
        inputs[REFERENCE] = state.initial[model]
    checkpoint = planner.add(
        stage or UPDATE_POLICY,
        inputs,
        iteration=iteration,
        settings=settings,
        seed=derive_seed(planner.config.seed, iteration, UPDATE_POLICY.name),
    )
    return replace(state, models={**state.models, model: checkpoint})


def _slice(config: RunConfig, _sources: Sources) -> UpdateSettings:
    return UpdateSettings(
        objective=config.objective,
        optimizer=config.optimizer,
        update=config.update,
        trainer=config.trainer,
        weights=weights_settings(config),
    )


def _compute(call: StageCall[UpdateSettings]) -> StageResult:
    """Train on every trajectory of the rollouts, whatever its role; write the new checkpoint."""
    from storage.tables.trajectories import read_trajectories

    settings = call.settings
    rows = read_trajectories(trajectory_files(call.inputs[ROLLOUTS], call.resources.store))
    trainer = open_trainer(call)
    work = Reinforcement(
        sequences=training_sequences(rows, settings.objective),
        objective=settings.objective,
        update=settings.update,
        seed=call.seed,
        reference=reference_policy(call),
    )
    metrics = trainer.reinforce(work, count_steps(call, settings.update.optimizer_steps))
    return training_result(call, trainer, metrics)


def training_sequences(
    trajectories: Sequence[Trajectory], objective: ObjectiveConfig
) -> list[TrainingSequence]:
    """Trajectories with their advantages; groups are those of the rows, one for each task and role."""
    advantages = group_advantages(
        [row.reward for row in trajectories],
        [_group(row, objective) for row in trajectories],
        objective.advantage_normalization,
    )
    return [
        trajectory_sequence(row, advantage) for row, advantage in zip(trajectories, advantages, strict=True)
    ]


def _group(row: Trajectory, objective: ObjectiveConfig) -> tuple[str, str | None]:
    """The rows that an advantage compares share it."""
    return row.group_id, row.subgroup if objective.advantages_per == "subgroup" else None


def reference_policy(call: StageCall[UpdateSettings]) -> LoadPolicy | Literal["own_base"] | None:
    """How the policy of the KL term is loaded; the base of an adapter is in memory already."""
    if REFERENCE not in call.inputs:
        return None
    reference = call.inputs[REFERENCE]
    if BASE in call.inputs and call.inputs[BASE].manifest.artifact_id == reference.manifest.artifact_id:
        return "own_base"
    parts = checkpoint_parts({CHECKPOINT: reference})
    return lambda: load_checkpoint(parts, call.settings.weights)


UPDATE_POLICY = Stage(
    name="update_policy",
    version=2,
    output="checkpoint",
    settings=UpdateSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="device",
)
