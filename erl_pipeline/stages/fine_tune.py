"""The stage that trains the policy to do at once what it first did after a reflection."""

from __future__ import annotations

from pathlib import Path

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.checkpoints import adapter_settings, base_input
from erl_pipeline.stages.build_distillation import DATASET
from erl_pipeline.trainers.interface import SupervisedTraining, TrainingStart
from erl_pipeline.trainers.local import TRAINER, LocalTrainerConfig
from erl_pipeline.trainers.sequences import supervised_sequence
from storage.artifacts.recipe import Recipe, derive_seed
from storage.tables.sft import read_sft_rows


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
        start = TrainingStart(
            context.store.open(checkpoint_id).folder,
            lambda: context.take_policy(checkpoint_id),
            config.optimizer,
        )
        trainer = TRAINER.open(LocalTrainerConfig(), start)
        work = SupervisedTraining([supervised_sequence(row) for row in rows], config.fine_tune, recipe.seed)
        metrics = trainer.fine_tune_supervised(work, context.count_steps("fine_tune"))
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

    return run_stage(context, recipe, iteration, train, config.fine_tune.steps, "steps")
