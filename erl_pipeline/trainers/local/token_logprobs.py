"""Log-probabilities of chosen tokens from hidden states, without keeping the vocabulary's logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

HEAD_CHUNK_TOKENS = 512
"""Number of tokens whose logits exist at the same time."""

_BLOCK_ELEMENTS = 2**20  # 4 MiB of fp32

TokenLoss = Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
"""Maps a chunk's log-probabilities and entropies (`[chunk]`, fp32) and its place to its share of the loss."""


def token_logprobs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and entropy of its distribution in nats, after temperature.

    Args:
        head: maps hidden states to logits.
        hidden: `[tokens, hidden]`; targets: `[tokens]`; temperatures: `[tokens]`, fp32.

    Returns two fp32 tensors `[tokens]`, with gradients to `hidden` and the head's weights.
    """
    statistics: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _SoftmaxStatistics.apply
    return statistics(head(hidden), targets, temperatures)


def backward_through_head(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor,
    loss: TokenLoss,
    after_backward: Callable[[], None],
) -> None:
    """Backward pass of a loss that is a sum over tokens, chunk by chunk: head first, then what made `hidden`.

    Each chunk's logits are freed before the next are made, and none are computed twice.

    Args:
        hidden: `[tokens, hidden]`, with its graph; targets, temperatures: `[tokens]`.
        loss: gives a chunk's share of the loss.
        after_backward: called after each backward pass, to take gradients out of low precision.
    """
    leaves = [chunk.detach().requires_grad_() for chunk in hidden.split(HEAD_CHUNK_TOKENS)]
    start = 0
    for leaf in leaves:
        place = slice(start, start + len(leaf))
        logprobs, entropies = token_logprobs(head, leaf, targets[place], temperatures[place])
        loss(logprobs, entropies, place).backward()
        after_backward()
        start = place.stop
    hidden.backward(torch.cat([leaf.grad for leaf in leaves if leaf.grad is not None]))
    after_backward()


class _SoftmaxStatistics(torch.autograd.Function):
    """Keeps the logits in their own precision and recomputes the fp32 softmax in the backward pass.

    Both passes go through one block of rows after the other: an fp32 copy of all logits would leave the cache
    at every elementwise step.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normalizers = torch.empty_like(temperatures)  # log-sum-exp
        means = torch.empty_like(temperatures)  # mean logit under the softmax
        for rows in _blocks(logits):
            scaled = logits[rows] / temperatures[rows, None]  # [rows, vocabulary], fp32 by promotion
            largest = scaled.amax(dim=-1, keepdim=True)
            weights = (scaled - largest).exp_()
            total = weights.sum(dim=-1)
            normalizers[rows] = largest[:, 0] + total.log()
            means[rows] = torch.linalg.vecdot(weights, scaled) / total
        chosen = logits.gather(1, targets[:, None])[:, 0].float() / temperatures
        entropies = normalizers - means
        ctx.save_for_backward(logits, targets, temperatures, normalizers, entropies)
        ctx.set_materialize_grads(False)
        return chosen - normalizers, entropies

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        logits, targets, temperatures, normalizers, entropies = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(normalizers)
        result = torch.empty_like(logits)
        for rows in _blocks(logits):
            log_softmax = (logits[rows] / temperatures[rows, None]).sub_(normalizers[rows, None])
            if grad_entropies is None:
                grad = log_softmax.exp_().mul_(-grad_logprobs[rows, None])
            else:
                # d entropy / d logit = -p (log p + entropy)
                upstream = grad_logprobs[rows, None] + grad_entropies[rows, None] * (
                    log_softmax + entropies[rows, None]
                )
                grad = log_softmax.exp_().mul_(-upstream)
            grad.scatter_add_(1, targets[rows, None], grad_logprobs[rows, None])
            result[rows] = grad.div_(temperatures[rows, None])
        return result, None, None


def _blocks(logits: torch.Tensor) -> Iterator[slice]:
    """Rows that are processed together: few on a CPU, all on a GPU."""
    rows = len(logits) if logits.is_cuda else max(1, _BLOCK_ELEMENTS // logits.shape[1])
    for start in range(0, len(logits), rows):
        yield slice(start, start + rows)
