"""The stage that trains the policy by supervision, on attempts that succeeded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.optimizer import FineTuneConfig
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import weights_settings
from erl_pipeline.stages.build_distillation import BUILD_DISTILLATION, DATASET, DistillationSettings
from erl_pipeline.stages.training import (
    ROLLOUTS,
    TrainingSettings,
    count_steps,
    open_trainer,
    training_result,
)
from erl_pipeline.stages.training_record import supervised_rows
from erl_pipeline.trainers.interface import SupervisedTraining
from erl_pipeline.trainers.sequences import supervised_sequence
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources


class FineTuneSettings(TrainingSettings):
    """What supervised training reads of the configuration."""

    fine_tune: FineTuneConfig


def plan_distillation(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    rows: DistillationSettings,
    model: str = POLICY,
) -> RunState:
    """Build the dataset of an iteration and train a model on it; the state after it."""
    dataset = planner.add(
        BUILD_DISTILLATION, {ROLLOUTS: rollouts}, iteration=iteration, settings=planner.shared(rows)
    )
    return plan_fine_tune(planner, state, iteration, dataset, model)


def plan_fine_tune(
    planner: Planner, state: RunState, iteration: int, dataset: str, model: str = POLICY
) -> RunState:
    """Train a model on a dataset, an artifact of kind `sft_dataset` of whatever stage; the state after it."""
    checkpoint = planner.add(
        FINE_TUNE,
        {**state.model_inputs(model), "dataset": dataset},
        iteration=iteration,
        seed=derive_seed(planner.config.seed, iteration, FINE_TUNE.name),
    )
    return replace(state, models={**state.models, model: checkpoint})


def _slice(config: RunConfig, _sources: Sources) -> FineTuneSettings:
    return FineTuneSettings(
        fine_tune=config.fine_tune,
        optimizer=config.optimizer,
        trainer=config.trainer,
        weights=weights_settings(config),
    )


def _compute(call: StageCall[FineTuneSettings]) -> StageResult:
    """Supervised steps on the dataset. An empty one leaves the weights as they are, and is committed too."""
    from storage.tables.sft import read_sft_rows

    settings = call.settings
    rows = read_sft_rows([call.inputs["dataset"].path(DATASET)])
    trainer = open_trainer(call)
    sequences = [supervised_sequence(row) for row in rows]
    work = SupervisedTraining(sequences, settings.fine_tune, call.seed)
    metrics = trainer.fine_tune_supervised(work, count_steps(call, settings.fine_tune.steps))
    return training_result(call, trainer, metrics, supervised_rows(rows, sequences, metrics.records))


FINE_TUNE = Stage(
    name="fine_tune",
    version=2,
    output="checkpoint",
    settings=FineTuneSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="device",
)
