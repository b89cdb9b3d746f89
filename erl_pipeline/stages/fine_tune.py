"""The stage that trains the policy to do at once what it first did after a reflection."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.checkpoints import MODEL, adapter_settings, base_input
from erl_pipeline.policies.pretrained import save_policy
from erl_pipeline.stages.build_distillation import DATASET
from erl_pipeline.stages.guarantees import training_guarantee
from erl_pipeline.trainers.local.optimizer import load_optimizer, save_optimizer
from erl_pipeline.trainers.local.sequences import TrainingSequence
from erl_pipeline.trainers.local.supervised import fine_tune as train_on
from storage.artifacts.recipe import Recipe, derive_seed
from storage.tables.sft import SftRow, read_sft_rows


def fine_tune(context: RunContext, iteration: int, checkpoint_id: str, dataset_id: str) -> StageOutcome:
    """Supervised steps on the distillation dataset; commit the new checkpoint.

    An empty dataset leaves the weights as they are, and is committed all the same.
    """
    config = context.config
    recipe = Recipe(
        stage="fine_tune",
        stage_version=1,
        kind="checkpoint",
        settings={
            **config.model_dump(mode="json", include={"fine_tune", "optimizer"}),
            **adapter_settings(config),
        },
        inputs={
            "checkpoint": checkpoint_id,
            "dataset": dataset_id,
            **base_input(context.store, checkpoint_id, config),
        },
        seed=derive_seed(config.seed, iteration, "fine_tune"),
    )

    def train(folder: Path) -> Work:
        rows = read_sft_rows([context.store.open(dataset_id).path(DATASET)])
        policy = context.take_policy(checkpoint_id)
        optimizer = load_optimizer(policy.model, config.optimizer, context.store.open(checkpoint_id).folder)
        metrics = train_on(
            policy.model,
            [_sequence(row) for row in rows],
            config.fine_tune,
            optimizer,
            seed=recipe.seed,
            on_step=context.count_steps("fine_tune"),
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

    return run_stage(context, recipe, iteration, train, config.fine_tune.steps, "steps")


def _sequence(row: SftRow) -> TrainingSequence:
    """The prompt reaches up to the first token that is trained."""
    start = row.loss_mask.index(1)
    return TrainingSequence(
        trajectory_id=row.trajectory_id,
        role="distilled",
        prompt_token_ids=row.input_token_ids[:start],
        response_token_ids=row.input_token_ids[start:],
        response_mask=row.loss_mask[start:],
        behaviour_logprobs=(),
        advantage=1.0,
        weight=row.weight,
    )
