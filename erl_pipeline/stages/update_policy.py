"""The stage that updates the policy by reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.objectives.advantages import group_advantages
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.checkpoints import MODEL, adapter_settings, base_input, load_checkpoint
from erl_pipeline.policies.pretrained import save_policy
from erl_pipeline.stages.guarantees import training_guarantee
from erl_pipeline.stages.rollouts import trajectory_files
from erl_pipeline.trainers.local.optimizer import load_optimizer, save_optimizer
from erl_pipeline.trainers.local.reinforcement import update_policy as train_on
from erl_pipeline.trainers.local.sequences import TrainingSequence
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
    if config.objective.kl_coefficient > 0:
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
        policy = context.take_policy(checkpoint_id)
        optimizer = load_optimizer(policy.model, config.optimizer, context.store.open(checkpoint_id).folder)
        reference = None
        if "reference" in inputs:
            # The base of an adapter is in memory already.
            of_adapter = inputs.get("base") == reference_id
            reference = policy if of_adapter else load_checkpoint(context.store, reference_id, config)
        metrics = train_on(
            policy.model,
            sequences,
            config.objective,
            config.update,
            optimizer,
            reference_model=None if reference is None else reference.model,
            seed=recipe.seed,
            on_step=context.count_steps("update_policy"),
        )
        save_policy(policy, folder / MODEL)
        save_optimizer(optimizer, folder)
        context.keep_policy(recipe.artifact_id, policy)
        return Work(
            counters=metrics.counters(),
            metrics=metrics.metrics(),
            policy_version=recipe.artifact_id,
            guarantee=training_guarantee(policy.model.device),
        )

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
        TrainingSequence(
            trajectory_id=row.trajectory_id,
            role=row.role,
            prompt_token_ids=row.prompt_token_ids,
            response_token_ids=row.response_token_ids,
            response_mask=row.response_mask,
            behaviour_logprobs=row.behaviour_logprobs,
            advantage=advantage,
            temperature=row.temperature,
        )
        for row, advantage in zip(trajectories, advantages, strict=True)
    ]
