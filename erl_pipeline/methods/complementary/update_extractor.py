"""The stage that trains the extractor on what its entries were worth (CISPO, arXiv 2603.17621, eq. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.methods.complementary.artifacts import CREDIT
from erl_pipeline.methods.complementary.pending import (
    Batch,
    batch_advantages,
    gather,
    pending_credits,
    requests_by_id,
)
from erl_pipeline.methods.complementary.settings import ComplementaryConfig
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT
from erl_pipeline.stages.training import (
    TrainingSettings,
    count_steps,
    open_trainer,
    training_result,
    training_settings,
)
from erl_pipeline.stages.training_record import reinforcement_rows
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import TrainingSequence, trajectory_sequence

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources
    from storage.tables.trajectories import Trajectory


class ExtractorUpdateSettings(TrainingSettings):
    """What an update of the extractor reads of the configuration."""

    objective: ObjectiveConfig
    update: UpdateConfig
    batch: int
    credit_per: Literal["entry", "request"]


def extractor_objective(clip: float) -> ObjectiveConfig:
    """The mean over all tokens of the batch of -sg(clip(ratio)) A log p, the ratio taken against the
    log-probabilities that were stored; no KL term, no entropy bonus."""
    return ObjectiveConfig(surrogate="cispo", clip_low=clip, clip_high=clip, loss_normalization="token_mean")


def training_sequences(batch: Batch, requests: Mapping[str, Trajectory]) -> list[TrainingSequence]:
    """The samples of a batch with their advantages."""
    advantages = batch_advantages([sample.reward for sample in batch.samples])
    return [
        trajectory_sequence(requests[sample.request_id], advantage)
        for sample, advantage in zip(batch.samples, advantages, strict=True)
    ]


def _slice(config: RunConfig, _sources: Sources) -> ExtractorUpdateSettings:
    assert isinstance(config.method, ComplementaryConfig)
    assert config.method.crl is not None
    extractor = config.method.crl.extractor
    return ExtractorUpdateSettings(
        objective=extractor_objective(extractor.clip),
        # One step for each batch, as in the paper and the code.
        update=config.update.model_copy(update={"epochs": 1, "minibatches": 1}),
        **{**training_settings(config), "optimizer": extractor.optimizer or config.optimizer},
        batch=extractor.batch,
        credit_per=extractor.credit_per,
    )


def _compute(call: StageCall[ExtractorUpdateSettings]) -> StageResult:
    """Train on the requests that wait, once they are enough; else carry the checkpoint over."""
    settings, store = call.settings, call.resources.store
    newest = call.inputs[CREDIT]
    credits = pending_credits(store, newest, call.inputs[CHECKPOINT])
    batch = gather(credits, settings.batch, settings.credit_per)
    requests = requests_by_id(store, newest, {sample.request_id for sample in batch.samples})
    sequences = training_sequences(batch, requests)
    trainer = open_trainer(call)
    work = Reinforcement(
        sequences=sequences,
        objective=settings.objective,
        update=settings.update,
        seed=call.seed,
    )
    metrics = trainer.reinforce(work, count_steps(call, settings.update.optimizer_steps))
    rows = [
        replace(requests[sample.request_id], reward=sample.reward, success=sample.reward > 0)
        for sample in batch.samples
    ]
    result = training_result(
        call,
        trainer,
        metrics,
        reinforcement_rows(rows, sequences, metrics.records),
        {
            "requests_waiting": batch.waiting,
            "requests_evicted": batch.evicted,
            "requests_trained": len(requests),
        },
    )
    rewards = [sample.reward for sample in batch.samples]
    means = {"reward_mean": fmean(rewards)} if rewards else {}
    return replace(result, metrics={**result.metrics, **means})


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
