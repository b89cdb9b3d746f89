"""The stage that trains the policy by supervision, on attempts that went well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from erl_pipeline.config.optimizer import FineTuneConfig
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import ROLLOUTS
from erl_pipeline.stages.training.build_distillation import (
    BUILD_DISTILLATION,
    DATASET,
    DistillationSettings,
    DistilledRoles,
)
from erl_pipeline.stages.training.training_record import supervised_rows
from erl_pipeline.stages.training.training_stage import (
    TrainingSettings,
    count_steps,
    open_trainer,
    plan_training,
    training_result,
    training_settings,
)
from erl_pipeline.trainers.interface import SupervisedTraining
from erl_pipeline.trainers.sequences import supervised_sequence

if TYPE_CHECKING:
    from erl_pipeline.config.optimizer import DistillationConfig
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources

NEWEST = "dataset"


class FineTuneSettings(TrainingSettings):
    """The part of the configuration that supervised training reads."""

    fine_tune: FineTuneConfig


def plan_distillation(
    planner: Planner,
    state: RunState,
    iteration: int,
    rollouts: str,
    roles: DistilledRoles,
    config: DistillationConfig,
    model: str = POLICY,
) -> RunState:
    """Plan the dataset of an iteration, and the training of a model on it and on earlier ones in the window.
    Returns the state after it."""
    settings = DistillationSettings(
        roles=roles, reward_above=config.reward_above, max_rows_per_task=config.max_rows_per_task
    )
    dataset = planner.add(
        BUILD_DISTILLATION, {ROLLOUTS: rollouts}, iteration=iteration, settings=planner.shared(settings)
    )
    earlier = {
        age: made
        for age in range(1, config.window)
        if (made := planner.planned(BUILD_DISTILLATION, iteration - age)) is not None
    }
    return plan_fine_tune(planner, state, iteration, dataset, model, earlier)


def plan_fine_tune(
    planner: Planner,
    state: RunState,
    iteration: int,
    dataset: str,
    model: str = POLICY,
    earlier: Mapping[int, str] | None = None,
) -> RunState:
    """Plan the training of a model on a dataset, an artifact of kind `sft_dataset` from any stage. Returns
    the state after it.

    Args:
        earlier: further datasets, by how many iterations ago they were made.
    """
    older = {f"{NEWEST}-{age:04d}": made for age, made in (earlier or {}).items()}
    return plan_training(planner, state, iteration, FINE_TUNE, {NEWEST: dataset, **older}, model)


def _slice(config: RunConfig, _sources: Sources) -> FineTuneSettings:
    return FineTuneSettings(fine_tune=config.fine_tune, **training_settings(config))


def _compute(call: StageCall[FineTuneSettings]) -> StageResult:
    """Take supervised steps on the datasets. Without rows the weights do not change, but are committed
    too."""
    from storage.tables.training import read_sft_rows

    # Sorted by name, the datasets go from the newest to the oldest.
    datasets = [call.inputs[name] for name in sorted(call.inputs) if name.startswith(NEWEST)]
    rows = read_sft_rows([dataset.path(DATASET) for dataset in datasets])
    settings = call.settings.fine_tune
    sequences = [supervised_sequence(row) for row in rows]
    work = SupervisedTraining(sequences, settings, call.seed)
    with open_trainer(call) as trainer:
        metrics = trainer.fine_tune_supervised(work, count_steps(call, settings.optimizer_steps(len(rows))))
        return training_result(call, trainer, metrics, supervised_rows(rows, sequences, metrics.records))


FINE_TUNE = Stage(
    name="fine_tune",
    version=3,
    output="checkpoint",
    settings=FineTuneSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="device",
)
