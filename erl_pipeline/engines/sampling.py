"""Drawing tokens with a random stream for each sequence."""

from __future__ import annotations

import numpy as np
import torch


def uniform_stream(seed: int, length: int) -> np.ndarray:
    """`length` uniforms in [0, 1) that depend on `seed` alone, not on batch or order."""
    return np.random.Generator(np.random.Philox(seed)).random(length)


def draw_tokens(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token for each row by inversion of the cumulative distribution.

    Args:
        logits: `[batch, vocabulary]`.
        temperatures: `[batch]`; 0 takes the most probable token.
        uniforms: `[batch]`, float64 in [0, 1).

    Returns:
        Token ids `[batch]` and their log-probabilities `[batch]` in nats, after temperature (at
        temperature 1 where it is 0). Sums run in float64, so that the tail of a large vocabulary
        is not lost to rounding.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)  # [batch, vocabulary]
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    sampled = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    sampled = sampled.clamp_(max=logits.shape[-1] - 1)
    tokens = torch.where(greedy, logprobs.argmax(dim=-1), sampled)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)
