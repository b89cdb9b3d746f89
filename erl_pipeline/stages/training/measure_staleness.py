"""The stage that measures how far stored rollouts are from the policy about to be trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.episodes.roles import trainable
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT, checkpoint_parts
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from erl_pipeline.stages.training import training_stage
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from storage.tables.trajectories import Trajectory

STALENESS = "staleness.parquet"


class StalenessSettings(training_stage.TrainingSettings):
    """The part of the configuration that the measurement reads."""

    correction: DecoupledCorrection
    microbatch_tokens: int


def _slice(config: RunConfig, _sources: Sources) -> StalenessSettings:
    correction = config.objective.correction
    assert isinstance(correction, DecoupledCorrection)
    return StalenessSettings(
        correction=correction,
        microbatch_tokens=config.update.microbatch_tokens,
        **training_stage.training_settings(config),
    )


def _compute(call: StageCall[StalenessSettings]) -> StageResult:
    """Write age and importance weight of every trajectory that may be trained, as they are before the update.

    Age counts the policy versions (updates and fine-tunings) between the policy that sampled a trajectory
    and the checkpoint, along their lineage; 0 is on-policy. It is unknown for policies that are not in
    the store.

    Raises InputError for rows of another tokenizer, or rows that the policy cannot read.
    """
    import torch

    from erl_pipeline.objectives.staleness import STALENESS_TABLE, summarize_weights, weight_rows
    from storage.tables.parquet import write_rows
    from storage.tables.trajectories import read_trajectories

    settings, store = call.settings, call.resources.store
    rows = trainable(read_trajectories(trajectory_files(call.inputs[ROLLOUTS], store)))
    require_readable(rows, training_stage.policy_here(call))
    checkpoint_id = checkpoint_parts(call.inputs).checkpoint_id
    versions = sorted({row.policy_version for row in rows})
    ages = {version: policy_age(store, version, checkpoint_id) for version in versions}
    trained = [row for row in rows if any(row.response_mask)]
    sequences = [trajectory_sequence(row) for row in trained]
    with training_stage.borrowed_trainer(call) as trainer:
        found = trainer.logprobs(sequences, settings.microbatch_tokens)
        determinism = trainer.determinism
    logprobs = [torch.from_numpy(each) for each in found]
    count = write_rows(
        call.folder / STALENESS, weight_rows(trained, logprobs, ages, settings.correction), STALENESS_TABLE
    )
    summary = summarize_weights(trained, logprobs, settings.correction)
    known = [age for row in trained if (age := ages[row.policy_version]) is not None]
    return StageResult(
        counters={
            "trajectories": len(trained),
            "trained_tokens": summary.tokens,
            "age_unknown": len(trained) - len(known),
            **({"age_max": max(known)} if known else {}),
        },
        metrics={
            **({"age_mean": sum(known) / len(known)} if known else {}),
            "effective_sample_size": summary.effective_sample_size,
            "effective_sample_size_capped": summary.effective_sample_size_capped,
            "capped": summary.capped,
            "weight_mean": summary.weight_mean,
            "behaviour_kl": summary.behaviour_kl,
        },
        rows={STALENESS: count},
        policy_version=call.inputs[CHECKPOINT].manifest.artifact_id,
        determinism=determinism,
    )


MEASURE_STALENESS = Stage(
    name="measure_staleness",
    version=4,
    output="table",
    settings=StalenessSettings,
    compute=_compute,
    slice=_slice,
    needs="training",
)


def policy_age(store: ArtifactStore, sampled_by: str, checkpoint_id: str) -> int | None:
    """How many policy versions lie between two checkpoints, by way of their last common ancestor; None where
    one is not in the store or they have no such ancestor."""
    above = _line(store, checkpoint_id)
    below = _line(store, sampled_by)
    shared = next((version for version in below if version in above), None)
    return None if shared is None else above.index(shared) + below.index(shared)


def _line(store: ArtifactStore, checkpoint_id: str) -> list[str]:
    """A checkpoint and those it was trained from, the newest first; [] for one that is not in the store."""
    from storage.lineage.graph import walk_inputs

    return list(walk_inputs(store.find, [checkpoint_id], through={"checkpoint"}).manifests)


def require_readable(rows: Sequence[Trajectory], policy: LoadedPolicy) -> None:
    """Raise InputError for rows of another tokenizer than the policy's, with token ids that it does not have,
    or longer than its context. A row without a tokenizer digest is assumed to be of the policy's
    tokenizer."""
    vocabulary = policy.model.get_input_embeddings().weight.shape[0]
    for row in rows:
        name = f"trajectory {row.trajectory_id}"
        if row.tokenizer_digest not in ("", policy.tokenizer_digest):
            raise InputError(
                f"{name} was tokenized by {row.tokenizer_digest}, and the policy's tokenizer is "
                f"{policy.tokenizer_digest}: its token ids mean something else; choose the policy of the rows"
            )
        tokens = (*row.prompt_token_ids, *row.response_token_ids)
        if max(tokens, default=0) >= vocabulary:
            raise InputError(
                f"{name} has token id {max(tokens)}, and the policy knows ids below {vocabulary}; "
                "choose the policy of the rows"
            )
        if len(tokens) > policy.context_length:
            raise InputError(
                f"{name} has {len(tokens)} tokens, and the policy reads at most {policy.context_length}"
            )
