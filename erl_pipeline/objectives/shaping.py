"""Losses of replayed tokens: the importance ratio to the policy that sampled them, shaped or capped."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from erl_pipeline.objectives.importance import bounded


@dataclass(frozen=True)
class ReplayedTokens:
    """All `[tokens]`: `loss`, to be minimised; `ratio` w, and `weight` g(w) that replaces it, both without
    gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor
    weight: torch.Tensor


def replay_surrogate(
    logprobs: torch.Tensor,
    stored_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    shaping_beta: float | None = None,
    weight_cap: float | None = None,
) -> ReplayedTokens:
    """`-A g(w)` with `w = exp(logprobs - stored_logprobs)`.

    - `shaping_beta`: g(w) = w / (w + beta), the policy shaping of ExGRPO (arXiv 2510.02245, eq. 4). Its
      gradient weighs `grad log p` by beta w / (w + beta)^2: most where the policy has come to find a token
      unlikely, and little near w = 1.
    - `weight_cap`: g(w) is min(w, cap), and weighs `grad log p` by just that, above the cap too (truncated
      importance sampling, Ionides 2008).
    - neither: g(w) = w.

    All tensors: `[tokens]`, nats; gradients flow into `logprobs` alone. Not both may be given.
    """
    if shaping_beta is not None and weight_cap is not None:
        raise ValueError("shaping_beta and weight_cap exclude each other")
    ratio = bounded(logprobs - stored_logprobs).exp()
    if shaping_beta is not None:
        weight = ratio / (ratio + shaping_beta)
        return ReplayedTokens(-advantages * weight, ratio.detach(), weight.detach())
    if weight_cap is None:
        return ReplayedTokens(-advantages * ratio, ratio.detach(), ratio.detach())
    weight = ratio.detach().clamp(max=weight_cap)
    # 1 in value; its gradient is that of the log-probability.
    carrier = 1.0 + logprobs - logprobs.detach()
    return ReplayedTokens(-advantages * weight * carrier, ratio.detach(), weight)
