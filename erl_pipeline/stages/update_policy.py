"""The stage that updates the policy by reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.checkpoints import adapter_settings, base_input, load_checkpoint
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.stages.rollouts import trajectory_files
from erl_pipeline.trainers.interface import LoadPolicy, Reinforcement, TrainingStart
from erl_pipeline.trainers.local import TRAINER, LocalTrainerConfig
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence
from storage.artifacts.recipe import Recipe, derive_seed
from storage.tables.trajectories import Trajectory, read_trajectories


def update_policy(
    context: RunContext, iteration: int, checkpoint_id: str, rollouts_id: str, reference_id: str
) -> StageOutcome:
    """Train on first attempts, reflections and second attempts; commit the new checkpoint.

    `reference_id` is the checkpoint that the KL term refers to; it is an input only where that term is on.
    """
    config = context.config
    inputs = {
        "checkpoint": checkpoint_id,
        "rollouts": rollouts_id,
        **base_input(context.store, checkpoint_id, config),
    }
    if config.objective.needs_reference:
        inputs["reference"] = reference_id
    recipe = Recipe(
        stage="update_policy",
        stage_version=1,
        kind="checkpoint",
        settings={
            **config.model_dump(mode="json", include={"objective", "optimizer", "update"}),
            **adapter_settings(config),
        },
        inputs=inputs,
        seed=derive_seed(config.seed, iteration, "update_policy"),
    )

    def train(folder: Path) -> Work:
        trajectories = read_trajectories(trajectory_files(context.store, rollouts_id))
        sequences = training_sequences(trajectories, config.objective)
        start = TrainingStart(
            context.store.open(checkpoint_id).folder,
            lambda: context.take_policy(checkpoint_id),
            config.optimizer,
        )
        trainer = TRAINER.open(LocalTrainerConfig(), start)
        work = Reinforcement(sequences, config.objective, config.update, recipe.seed, reference())
        metrics = trainer.reinforce(work, context.count_steps("update_policy"))
        trainer.save(folder)
        trained = trainer.trained_policy()
        if trained is not None:
            context.keep_policy(recipe.artifact_id, trained)
        return Work(
            counters=metrics.counters(),
            metrics=metrics.metrics(),
            policy_version=recipe.artifact_id,
            guarantee=trainer.determinism,
        )

    def reference() -> LoadPolicy | Literal["own_base"] | None:
        if "reference" not in inputs:
            return None

        def load() -> LoadedPolicy:
            return load_checkpoint(context.store, reference_id, config)

        # The base of an adapter is in memory already.
        return "own_base" if inputs.get("base") == reference_id else load

    return run_stage(context, recipe, iteration, train, config.update.optimizer_steps, "steps")


def training_sequences(
    trajectories: Sequence[Trajectory], objective: ObjectiveConfig
) -> list[TrainingSequence]:
    """Trajectories with their advantages; groups are those of the rows, one for each task and role."""
    advantages = group_advantages(
        [row.reward for row in trajectories],
        [row.group_id for row in trajectories],
        objective.advantage_normalization,
    )
    return [
        trajectory_sequence(row, advantage) for row, advantage in zip(trajectories, advantages, strict=True)
    ]
