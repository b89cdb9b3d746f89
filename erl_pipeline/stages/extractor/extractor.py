"""The extractor: asking it, its first checkpoint where that is not the policy's, and its training on the
credit of its entries (CISPO, arXiv 2603.17621, eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.experience import EXTRACTOR, ExperienceTemplates, Lessons
from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.config.plugins import as_in_recipes, plugins
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.environments.prompt_format import ExperienceFormat
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import WeightsSettings, weights_settings
from erl_pipeline.stages.extractor.names import CREDIT
from erl_pipeline.stages.extractor.prompts import ExperiencePrompts
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.single_turn import SingleTurnSampler
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity, located_environment
from erl_pipeline.stages.training.first_checkpoint import (
    COLD_START,
    COPY_PRETRAINED,
    ColdStartSettings,
    cold_start_with,
)
from erl_pipeline.stages.training.training_stage import TrainingSettings, reinforce, training_settings
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import trajectory_sequence

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources


class AskingSettings(Settings):
    """What an answer of the extractor depends on, besides its checkpoint and the content of its prompt."""

    environment: SerializeAsAny[PluginSettings]
    prompts: ExperienceTemplates
    max_operations: int
    max_tokens: int
    temperature: float
    engine: SerializeAsAny[PluginSettings]
    weights: WeightsSettings
    embedding_model: str
    """The embedding model of the memory that holds the entries it is shown."""


def lessons_of(config: RunConfig) -> Lessons:
    """The settings of a run with an extractor."""
    assert config.lessons is not None
    return config.lessons


def asking_settings(config: RunConfig, max_tokens: int) -> AskingSettings:
    """The settings of a run, for answers of at most `max_tokens` tokens."""
    lessons = lessons_of(config)
    extractor = lessons.settings.extractor
    return AskingSettings(
        environment=environment_identity(config),
        prompts=lessons.prompts,
        max_operations=extractor.max_operations,
        max_tokens=max_tokens,
        temperature=extractor.temperature,
        engine=as_in_recipes("engines", config.engine),
        weights=weights_settings(config),
        embedding_model=lessons.settings.embedding_model,
    )


def experience_format(settings: AskingSettings) -> ExperienceFormat:
    """The prompts: the environment's own, else the templates of the settings."""
    environment = plugins("environments")[settings.environment.type].value
    own: ExperienceFormat | None = environment.tiny.experience(settings.environment)
    return own or ExperiencePrompts(settings.prompts, settings.max_operations)


def opened_extractor(call: StageCall[Any], settings: AskingSettings) -> SingleTurnSampler:
    """The extractor that is among the inputs of a stage, ready to answer."""
    return SingleTurnSampler(
        call, EXTRACTOR, settings.weights, settings.engine, settings.max_tokens, settings.temperature
    )


_NAME = "bootstrap_extractor"


def _cold_start_slice(config: RunConfig, sources: Sources) -> ColdStartSettings:
    """The settings of the policy's cold start, with the extractor's own settings where it has some."""
    assert COLD_START.slice is not None
    settings = COLD_START.slice(config, sources)
    assert isinstance(settings.policy, TinyPolicyConfig)
    own = lessons_of(config).settings.extractor.cold_start
    if own is None:
        return settings
    learning = own.model_copy(update={"seed": 0})  # the recipe holds the seed
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"cold_start": learning})})


def _cold_start(call: StageCall[ColdStartSettings]) -> StageResult:
    plugin, environment = located_environment(call)
    parts = plugin.tiny.extractor(environment)
    assert parts is not None  # The configuration has been checked.
    return cold_start_with(call, parts)


COLD_START_EXTRACTOR = replace(COLD_START, name=_NAME, compute=_cold_start, slice=_cold_start_slice)

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
    extractor = lessons_of(config).settings.extractor
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
    work = Reinforcement(sequences, settings.objective, settings.update, call.seed)
    return reinforce(call, work, rows, {"requests_trained": len({row.parent_trajectory_id for row in rows})})


UPDATE_EXTRACTOR = Stage(
    name="update_extractor",
    version=5,
    output="checkpoint",
    settings=ExtractorUpdateSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="training",
)
