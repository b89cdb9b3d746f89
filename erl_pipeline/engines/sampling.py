"""Drawing tokens with a random stream for each sequence."""

import numpy as np
import torch

from storage.errors import EngineError

_LARGEST_BLOCK = 512  # tokens whose weights are summed before they are searched


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
        is not lost to rounding. The inversion finds a block of tokens first, then the token in it.

    Raises EngineError for logits that give no distribution.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    scaled = logits.float() / scale[:, None]  # [batch, vocabulary]
    largest = scaled.amax(dim=-1, keepdim=True)
    weights = (scaled - largest).exp_()
    size = min(_LARGEST_BLOCK, weights.shape[-1])
    if missing := -weights.shape[-1] % size:
        weights = torch.nn.functional.pad(weights, (0, missing))
    weights = weights.unflatten(1, (-1, size))  # [batch, blocks, block]
    cumulative = _cumulative(weights.sum(dim=-1, dtype=torch.float64))  # [batch, blocks]
    total = cumulative[:, -1:]
    if not bool(total.isfinite().all()):
        raise EngineError("the policy's logits are not finite: its weights are damaged, or training diverged")
    targets = uniforms[:, None] * total
    block = _invert(cumulative, targets)
    below = torch.nn.functional.pad(cumulative, (1, 0)).gather(1, block)
    rows = torch.arange(len(weights), device=weights.device)
    within = _cumulative(weights[rows, block[:, 0]].double())  # [batch, block]
    tokens = (block * size + _invert(within, targets - below))[:, 0]
    if bool(greedy.any()):
        tokens = torch.where(greedy, scaled.argmax(dim=-1), tokens)
    normalizers = largest[:, 0] + total[:, 0].log().float()
    return tokens, scaled.gather(1, tokens[:, None])[:, 0] - normalizers


def _cumulative(values: torch.Tensor) -> torch.Tensor:
    """The sums of each row up to each place.

    They are computed in host memory: on a GPU torch has no deterministic form of this for floating-point
    numbers, and refuses it under `resources.determinism: bytes`.
    """
    return values.cpu().cumsum(dim=-1).to(values.device)


def _invert(cumulative: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """First places `[batch, 1]` where the sums exceed the targets; never a place of weight 0.

    Rounding may put a target at the very end of the sums: it then belongs to the last place with a weight.
    """
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, targets, right=True), last)
