"""Importance weights for data that another policy, or another engine, has sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this many nats on both sides, so that their exponentials stay finite."""


@dataclass(frozen=True)
class ImportanceWeights:
    """`weights`: `[tokens]`, after truncation or masking. `capped`: `[tokens]`, true where the raw weight
    exceeded the cap."""

    weights: torch.Tensor
    capped: torch.Tensor


def bounded(log_ratio: torch.Tensor) -> torch.Tensor:
    """Log-ratios clamped to `LOG_RATIO_BOUND`. Same shape."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def importance_weights(
    old_logprobs: torch.Tensor,
    behaviour_logprobs: torch.Tensor,
    sequence: torch.Tensor,
    *,
    level: Literal["token", "sequence"],
    mode: Literal["truncate", "mask"],
    cap: float,
) -> ImportanceWeights:
    """Weights `exp(old - behaviour)` of the trainer's policy over the sampler's.

    At `level` "sequence" the log-ratios of a sequence's tokens are summed and all its tokens get the
    product. Above `cap`, `mode` "truncate" sets the weight to the cap (truncated importance sampling,
    Ionides 2008; for the mismatch of engines Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy training") and "mask" sets it to 0.

    Args:
        old_logprobs, behaviour_logprobs: `[tokens]`, nats.
        sequence: `[tokens]`, the number of the sequence that a token belongs to, from 0.
    """
    log_ratio = old_logprobs - behaviour_logprobs
    if level == "sequence":
        totals = torch.zeros(int(sequence.max()) + 1 if len(sequence) else 0, device=log_ratio.device)
        log_ratio = totals.index_add(0, sequence, log_ratio)[sequence]
    raw = bounded(log_ratio).exp()
    capped = raw > cap
    weights = raw.clamp(max=cap) if mode == "truncate" else raw.masked_fill(capped, 0.0)
    return ImportanceWeights(weights, capped)
