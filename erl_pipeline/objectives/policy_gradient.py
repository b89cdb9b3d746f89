"""The clipped surrogate of PPO, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from erl_pipeline.objectives.importance import bounded


@dataclass(frozen=True)
class Surrogate:
    """`loss`: `[tokens]`, to be minimised. `ratio`: `[tokens]`, without gradient. `clipped`: `[tokens]`,
    true where a bound is active, so that the token gives no gradient."""

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
