"""How far stored rollouts are from a policy: importance weights, and how many samples they are worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import torch

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.objectives.policy_gradient import bounded, importance_weights, kl_estimate
from storage.tables.parquet import TableFormat
from storage.tables.trajectories import Trajectory

STALENESS_TABLE = TableFormat(
    name="staleness",
    version=1,
    schema=pa.schema(
        [
            pa.field("trajectory_id", pa.string(), nullable=False),  # the stored sequence
            pa.field("policy_version", pa.string(), nullable=False),  # the checkpoint that sampled it
            pa.field("age", pa.int32()),  # policy versions between the two; null: unknown
            pa.field("tokens", pa.int32(), nullable=False),  # that were sampled
            pa.field("log_ratio", pa.float32(), nullable=False),  # policy to sampler, the sum, nats
            pa.field("mean_weight", pa.float32(), nullable=False),  # importance weight that is used
            pa.field("capped_tokens", pa.int32(), nullable=False),  # truncated or masked
        ]
    ),
    dictionary=("policy_version",),
)
"""One row for each trajectory; see `weight_rows`."""


@dataclass(frozen=True)
class WeightSummary:
    """Importance weights of the policy about to be trained over the one that sampled.

    Effective sample sizes are `(sum w)^2 / (n sum w^2)` (Kong 1992), in (0, 1]: one of these samples is worth
    this share of a sample of the policy's own. The first is for the raw weights, the one named `capped` for
    those after truncation or masking. Samples are tokens, or sequences where the correction's level is
    `sequence`. `capped` is the share of samples above the cap, and `weight_mean` the mean weight that the
    update uses. `behaviour_kl` is KL(sampler || policy) in nats per token by the k3 estimator. Without tokens
    all are 0.
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
    """The summary for these rows. `logprobs`: for each row those of its tokens with mask 1 under the policy,
    nats."""
    if not rows:
        return WeightSummary(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    behaviour, sequence = _behaviour(rows)
    olds = torch.cat(list(logprobs))
    weights = importance_weights(olds, behaviour, sequence, correction)
    log_ratios = olds - behaviour
    used, capped = weights.weights, weights.capped
    if correction.level == "sequence":
        log_ratios = torch.zeros(len(rows), dtype=log_ratios.dtype).index_add(0, sequence, log_ratios)
        counts = sequence.bincount()
        first = counts.cumsum(0) - counts
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


def weight_rows(
    rows: Sequence[Trajectory],
    logprobs: Sequence[torch.Tensor],
    ages: Mapping[str, int | None],
    correction: DecoupledCorrection,
) -> list[dict[str, object]]:
    """One row for each trajectory, for the table of a staleness measurement; arguments as
    `summarize_weights`.

    `ages` maps a policy version to its age, None where it is unknown.
    """
    result: list[dict[str, object]] = []
    for row, olds in zip(rows, logprobs, strict=True):
        behaviour, sequence = _behaviour([row])
        weights = importance_weights(olds, behaviour, sequence, correction)
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


def _behaviour(rows: Sequence[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the sampler at all tokens with mask 1, and the row number of each token."""
    behaviour = [
        [logprob for logprob, bit in zip(row.behaviour_logprobs, row.response_mask, strict=True) if bit]
        for row in rows
    ]
    counts = torch.tensor([len(values) for values in behaviour])
    flat = torch.tensor([value for values in behaviour for value in values], dtype=torch.float32)
    return flat, torch.arange(len(rows)).repeat_interleave(counts)
