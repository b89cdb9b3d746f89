"""Training the extractor: its first checkpoint, where it is not the policy's, and the stage that trains it on
the credit of its entries (CISPO, arXiv 2603.17621, eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.methods.complementary.settings import CREDIT, ComplementaryConfig
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.tasks.prepare_tasks import located
from erl_pipeline.stages.training.first_checkpoint import (
    COLD_START,
    COPY_PRETRAINED,
    ColdStartSettings,
    cold_start_with,
)
from erl_pipeline.stages.training.training_stage import (
    TrainingSettings,
    count_steps,
    open_trainer,
    reinforcement_rows,
    training_result,
    training_settings,
)
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import trajectory_sequence

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources


_NAME = "bootstrap_extractor"


def _cold_start_slice(config: RunConfig, sources: Sources) -> ColdStartSettings:
    """The settings of the policy's cold start, with the extractor's own settings where it has some."""
    assert COLD_START.slice is not None
    settings = COLD_START.slice(config, sources)
    assert isinstance(settings.policy, TinyPolicyConfig)
    assert isinstance(config.method, ComplementaryConfig)
    own = None if config.method.crl is None else config.method.crl.extractor.cold_start
    if own is None:
        return settings
    learning = own.model_copy(update={"seed": 0})  # the recipe holds the seed
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"cold_start": learning})})


def _cold_start(call: StageCall[ColdStartSettings]) -> StageResult:
    environment = located(call.settings.environment, call.settings.files, call.locations)
    plugin = plugins("environments")[environment.type].value
    return cold_start_with(call, plugin.tiny.extractor(environment))


COLD_START_EXTRACTOR = replace(
    COLD_START, name=_NAME, compute=_cold_start, slice=_cold_start_slice, code=(*COLD_START.code, "method")
)

COPY_EXTRACTOR = replace(COPY_PRETRAINED, name=_NAME, slice=None)
"""The plan passes its settings."""


class ExtractorUpdateSettings(TrainingSettings):
    """The part of the configuration that an update of the extractor reads."""

    objective: ObjectiveConfig
    update: UpdateConfig


def extractor_objective(clip: float) -> ObjectiveConfig:
    """The mean over all tokens of the batch of -sg(clip(ratio)) A log p, the ratio taken against the
    log-probabilities that were stored; no KL term, no entropy bonus."""
    return ObjectiveConfig(surrogate="cispo", clip_low=clip, clip_high=clip, loss_normalization="token_mean")


def batch_advantages(rewards: Sequence[float]) -> list[float]:
    """Rewards less their mean over the batch; not divided by anything (arXiv 2603.17621, section 3.3)."""
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return [reward - mean for reward in rewards]


def _slice(config: RunConfig, _sources: Sources) -> ExtractorUpdateSettings:
    assert isinstance(config.method, ComplementaryConfig)
    assert config.method.crl is not None
    extractor = config.method.crl.extractor
    return ExtractorUpdateSettings(
        objective=extractor_objective(extractor.clip),
        # One step for each batch, as in the paper and the code.
        update=config.update.model_copy(update={"epochs": 1, "minibatches": 1}),
        **{**training_settings(config), "optimizer": extractor.optimizer or config.optimizer},
    )


def _compute(call: StageCall[ExtractorUpdateSettings]) -> StageResult:
    """Train on the batch that comes with the credits; without one the checkpoint is carried over."""
    from storage.tables.trajectories import read_trajectories

    settings = call.settings
    rows = read_trajectories([call.inputs[CREDIT].path(TRAJECTORIES)])
    advantages = batch_advantages([row.reward for row in rows])
    sequences = [trajectory_sequence(row, advantage) for row, advantage in zip(rows, advantages, strict=True)]
    work = Reinforcement(
        sequences=sequences, objective=settings.objective, update=settings.update, seed=call.seed
    )
    asked = {"requests_trained": len({row.parent_trajectory_id for row in rows})}
    with open_trainer(call) as trainer:
        metrics = trainer.reinforce(work, count_steps(call, settings.update.optimizer_steps))
        record = reinforcement_rows(rows, sequences, metrics.records)
        return training_result(call, trainer, metrics, record, asked)


UPDATE_EXTRACTOR = Stage(
    name="update_extractor",
    version=1,
    output="checkpoint",
    settings=ExtractorUpdateSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer", "method"),
    needs="device",
)
