"""The parts of the policy loss: the clipped surrogate of PPO and the KL divergence, token by token, and the
weights with which tokens make up the loss of an optimizer batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from erl_pipeline.objectives.importance import bounded

LossNormalization = Literal["token_mean", "sequence_mean", "sequence_sum"]


@dataclass(frozen=True)
class Surrogate:
    """`loss`: `[tokens]`, to be minimised. `ratio`: `[tokens]`, without gradient. `clipped`: `[tokens]`,
    true where a bound is active: the token has no gradient, or under CISPO one weighted by the bound."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor


def clipped_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    lowest_ratio: torch.Tensor,
    highest_ratio: torch.Tensor,
    dual_clip: torch.Tensor | None = None,
) -> Surrogate:
    """`-min(r A, clip(r, lowest, highest) A)` with `r = exp(logprobs - old_logprobs)`.

    PPO, arXiv 1707.06347, eq. 7, with a range that need not be symmetric (DAPO, arXiv 2503.14476, eq. 10):
    `lowest` is `1 - clip_low` and `highest` is `1 + clip_high`. `dual_clip` c bounds the surrogate of a
    negative advantage from below by `c A` (arXiv 1912.09729, eq. 5); infinity bounds nothing.
    All tensors: `[tokens]`; gradients flow into `logprobs` alone.
    """
    ratio = bounded(logprobs - old_logprobs).exp()
    unclipped = ratio * advantages
    within_range = ratio.clamp(lowest_ratio, highest_ratio) * advantages
    surrogate = torch.minimum(unclipped, within_range)
    clipped = within_range < unclipped
    if dual_clip is not None:
        bound = dual_clip * advantages
        beyond = (advantages < 0) & (surrogate < bound)
        surrogate = torch.where(beyond, bound, surrogate)
        clipped = clipped | beyond
    return Surrogate(loss=-surrogate, ratio=ratio.detach(), clipped=clipped)


def cispo_surrogate(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    lowest_ratio: torch.Tensor,
    highest_ratio: torch.Tensor,
) -> Surrogate:
    """`-sg(clip(r, lowest, highest)) A log p` with `r = exp(logprobs - old_logprobs)`.

    CISPO (arXiv 2506.13585, eq. 4); Complementary RL trains its extractor with it (arXiv 2603.17621, eq. 3).

    The gradient of a token is `clip(r) A grad log p`, not zero where the ratio is clipped. All tensors:
    `[tokens]`; gradients flow into `logprobs` alone.
    """
    ratio = bounded(logprobs.detach() - old_logprobs).exp()
    weight = ratio.clamp(lowest_ratio, highest_ratio)
    return Surrogate(loss=-weight * advantages * logprobs, ratio=ratio, clipped=weight != ratio)


def kl_estimate(
    logprobs: torch.Tensor, other_logprobs: torch.Tensor, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """Estimate KL(policy || other) in nats at each token that `policy` sampled. All tensors: `[tokens]`.

    Schulman 2020, "Approximating KL divergence".

    With `d = logprobs - other_logprobs`: `k1 = d` is unbiased and may be negative; `k2 = d^2 / 2` has
    little variance and, as a loss, the gradient of the divergence; `k3 = exp(-d) - 1 + d` is unbiased
    and never negative (the GRPO term, arXiv 2402.03300, eq. 4).
    """
    difference = bounded(logprobs - other_logprobs)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    return torch.expm1(-difference) + difference


def token_weights(token_counts: Sequence[int], normalization: LossNormalization) -> list[float]:
    """The factor of each token's loss, one for each sequence of a whole optimizer batch.

    The loss of the batch is the sum over its tokens of factor times token loss. All sequences of the batch
    count, whatever their role. Since the factors are fixed before the batch is cut, microbatches do not
    change the gradient.

    - `token_mean`: `1 / tokens of the batch` (DAPO, arXiv 2503.14476, eq. 12)
    - `sequence_mean`: `1 / (sequences * tokens of the sequence)` (GRPO, arXiv 2402.03300, eq. 3)
    - `sequence_sum`: `1 / sequences` (Dr. GRPO, arXiv 2503.20783, up to its constant)

    Args:
        token_counts: trained tokens of each sequence, all at least 1.
    """
    if normalization == "token_mean":
        return [1.0 / sum(token_counts)] * len(token_counts)
    if normalization == "sequence_mean":
        return [1.0 / (len(token_counts) * count) for count in token_counts]
    return [1.0 / len(token_counts)] * len(token_counts)
