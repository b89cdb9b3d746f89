"""Estimators of the KL divergence from samples (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from typing import Literal

import torch

from erl_pipeline.objectives.importance import bounded


def kl_estimate(
    logprobs: torch.Tensor, other_logprobs: torch.Tensor, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """Estimate KL(policy || other) in nats at each token that `policy` sampled. All tensors: `[tokens]`.

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
