"""The stage that measures how far stored rollouts are from the policy about to be trained on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.objectives.importance import bounded, importance_weights
from erl_pipeline.objectives.kl import kl_estimate
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.outcome import StageOutcome
from erl_pipeline.pipeline.stage import Work, run_stage
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.stages.rollouts import trajectory_files
from erl_pipeline.trainers.interface import TrainingStart
from erl_pipeline.trainers.local import TRAINER, LocalTrainerConfig
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.tables.parquet import TableFormat, write_rows
from storage.tables.trajectories import Trajectory, read_trajectories

STALENESS = "staleness.parquet"
STALENESS_TABLE = TableFormat(
    name="staleness",
    version=1,
    schema=pa.schema(
        [
            pa.field("trajectory_id", pa.string(), nullable=False),
            pa.field("policy_version", pa.string(), nullable=False),
            pa.field("age", pa.int32()),
            pa.field("tokens", pa.int32(), nullable=False),
            pa.field("log_ratio", pa.float32(), nullable=False),
            pa.field("mean_weight", pa.float32(), nullable=False),
            pa.field("capped_tokens", pa.int32(), nullable=False),
        ]
    ),
    dictionary=("policy_version",),
)


def measure_staleness(
    context: RunContext, iteration: int, checkpoint_id: str, rollouts_id: str
) -> StageOutcome:
    """Commit age and importance weight of every trajectory, as they are before the update.

    Age counts the policy versions (updates and fine-tunings) between the policy that sampled a trajectory
    and the checkpoint, along their lineage; 0 is on-policy. It is unknown for policies that are not in
    the store. For the weights see `WeightSummary`; only for objectives with a decoupled correction.

    Raises InputError for rows of another tokenizer, or that the policy cannot read.
    """
    config = context.config
    correction = config.objective.correction
    assert isinstance(correction, DecoupledCorrection)
    recipe = Recipe(
        stage="measure_staleness",
        stage_version=1,
        kind="table",
        settings={
            "correction": correction.model_dump(mode="json"),
            "microbatch_tokens": config.update.microbatch_tokens,
        },
        inputs={"checkpoint": checkpoint_id, "rollouts": rollouts_id},
        seed=0,
    )

    def measure(folder: Path) -> Work:
        rows = read_trajectories(trajectory_files(context.store, rollouts_id))
        policy = context.policy(checkpoint_id)
        require_readable(rows, policy)
        versions = sorted({row.policy_version for row in rows})
        ages = {version: policy_age(context.store, version, checkpoint_id) for version in versions}
        trained = [row for row in rows if any(row.response_mask)]
        start = TrainingStart(context.store.open(checkpoint_id).folder, lambda: policy, config.optimizer)
        trainer = TRAINER.open(LocalTrainerConfig(), start)
        sequences = [trajectory_sequence(row) for row in trained]
        logprobs = [
            torch.from_numpy(values)
            for values in trainer.logprobs(sequences, config.update.microbatch_tokens)
        ]
        count = write_rows(
            folder / STALENESS, _staleness_rows(trained, logprobs, ages, correction), STALENESS_TABLE
        )
        summary = summarize_weights(trained, logprobs, correction)
        known = [age for row in trained if (age := ages[row.policy_version]) is not None]
        return Work(
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
            policy_version=checkpoint_id,
            guarantee=trainer.determinism,
        )

    return run_stage(context, recipe, iteration, measure)


@dataclass(frozen=True)
class WeightSummary:
    """Importance weights of the policy about to be trained over the one that sampled.

    Effective sample sizes are `(sum w)^2 / (n sum w^2)` (Kong 1992): the share, in (0, 1], of samples of
    the policy's own that these are worth; of the raw weights, and after truncation or masking. Samples are
    tokens, or sequences where the correction's level is `sequence`. `capped` is their share above the cap,
    `weight_mean` the mean weight that the update uses, `behaviour_kl` KL(sampler || policy) in nats a token
    by the k3 estimator. Without tokens all are 0.
    """

    tokens: int
    effective_sample_size: float
    effective_sample_size_capped: float
    capped: float
    weight_mean: float
    behaviour_kl: float


def summarize_weights(
    rows: Sequence[Trajectory], logprobs: Sequence[torch.Tensor], correction: DecoupledCorrection
) -> WeightSummary:
    """`logprobs`: for each row those of its tokens with mask 1 under the policy, nats."""
    if not rows:
        return WeightSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    behaviour, sequence = _behaviour(rows)
    olds = torch.cat(list(logprobs))
    weights = importance_weights(
        olds, behaviour, sequence, level=correction.level, mode=correction.mode, cap=correction.cap
    )
    log_ratios = olds - behaviour
    used, capped = weights.weights, weights.capped
    if correction.level == "sequence":
        log_ratios = torch.zeros(len(rows), dtype=log_ratios.dtype).index_add(0, sequence, log_ratios)
        first = torch.tensor([int((sequence == i).nonzero()[0]) for i in range(len(rows))])
        used, capped = used[first], capped[first]
    return WeightSummary(
        tokens=len(olds),
        effective_sample_size=effective_sample_size(bounded(log_ratios).exp()),
        effective_sample_size_capped=effective_sample_size(used),
        capped=float(capped.double().mean()),
        weight_mean=float(used.double().mean()),
        behaviour_kl=float(kl_estimate(behaviour, olds, "k3").mean()),
    )


def effective_sample_size(weights: torch.Tensor) -> float:
    """`(sum w)^2 / (n sum w^2)`; 0 where all weights are 0. `weights`: `[samples]`."""
    squares = float((weights.double() ** 2).sum())
    return float(weights.double().sum()) ** 2 / (len(weights) * squares) if squares else 0.0


def policy_age(store: ArtifactStore, sampled_by: str, checkpoint_id: str) -> int | None:
    """Policy versions between two checkpoints, through the last that both come from; None where one is not
    in the store or they have no ancestor in common."""
    above = _line(store, checkpoint_id)
    below = _line(store, sampled_by)
    shared = next((version for version in below if version in above), None)
    return None if shared is None else above.index(shared) + below.index(shared)


def _line(store: ArtifactStore, checkpoint_id: str) -> list[str]:
    """A checkpoint and those it was trained from, the newest first; [] for one that is not in the store."""
    line: list[str] = []
    version: str | None = checkpoint_id
    while version:
        manifest = store.find(version)
        if manifest is None:
            break
        line.append(version)
        version = manifest.inputs.get("checkpoint")
    return line


def require_readable(rows: Sequence[Trajectory], policy: LoadedPolicy) -> None:
    """Raise InputError for rows of another tokenizer than the policy's, with token ids that it does not
    have, or longer than its context. A row without a tokenizer digest is taken at its word."""
    vocabulary = policy.model.get_input_embeddings().weight.shape[0]
    for row in rows:
        name = f"trajectory {row.trajectory_id}"
        if row.tokenizer_digest not in ("", policy.tokenizer_digest):
            raise InputError(
                f"{name} was tokenized by {row.tokenizer_digest}, and the policy's tokenizer is "
                f"{policy.tokenizer_digest}: its token ids mean something else; choose the policy of the rows"
            )
        tokens = (*row.prompt_token_ids, *row.response_token_ids)
        if max(tokens) >= vocabulary:
            raise InputError(
                f"{name} has token id {max(tokens)}, and the policy knows ids below {vocabulary}; "
                "choose the policy of the rows"
            )
        if len(tokens) > policy.context_length:
            raise InputError(
                f"{name} has {len(tokens)} tokens, and the policy reads at most {policy.context_length}"
            )


def _behaviour(rows: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the sampler at all tokens with mask 1, and the number of the row of each."""
    behaviour = [
        [logprob for logprob, bit in zip(row.behaviour_logprobs, row.response_mask, strict=True) if bit]
        for row in rows
    ]
    counts = torch.tensor([len(values) for values in behaviour])
    flat = torch.tensor([value for values in behaviour for value in values], dtype=torch.float32)
    return flat, torch.arange(len(rows)).repeat_interleave(counts)


def _staleness_rows(
    rows: Sequence[Trajectory],
    logprobs: Sequence[torch.Tensor],
    ages: Mapping[str, int | None],
    correction: DecoupledCorrection,
) -> list[dict[str, object]]:
    result: list[dict[str, object]] = []
    for row, olds in zip(rows, logprobs, strict=True):
        behaviour, sequence = _behaviour([row])
        weights = importance_weights(
            olds, behaviour, sequence, level=correction.level, mode=correction.mode, cap=correction.cap
        )
        result.append(
            {
                "trajectory_id": row.trajectory_id,
                "policy_version": row.policy_version,
                "age": ages[row.policy_version],
                "tokens": len(olds),
                "log_ratio": float((olds - behaviour).sum()),
                "mean_weight": float(weights.weights.mean()),
                "capped_tokens": int(weights.capped.sum()),
            }
        )
    return result
