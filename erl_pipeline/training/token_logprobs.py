"""Log-probabilities of chosen tokens from hidden states, without keeping the vocabulary's logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

HEAD_CHUNK_TOKENS = 256
"""Tokens whose logits exist at one time."""

TokenLoss = Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
"""Log-probabilities and entropies of a chunk (`[chunk]`, fp32) and its place to the chunk's share of the loss."""


def token_logprobs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and entropy of its distribution in nats, after temperature.

    Args:
        head: maps hidden states to logits.
        hidden: `[tokens, hidden]`; targets: `[tokens]`; temperatures: `[tokens]`, fp32.

    Returns two fp32 tensors `[tokens]`, with gradients to `hidden` and the head's weights.
    """
    return _SoftmaxStatistics.apply(head(hidden), targets, temperatures)


def backward_through_head(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor,
    loss: TokenLoss,
    after_chunk: Callable[[], None],
) -> None:
    """Backward pass of a loss that is a sum over tokens, chunk by chunk: head first, then what made `hidden`.

    Each chunk's logits are gone before the next are made, and none is computed twice.

    Args:
        hidden: `[tokens, hidden]`, with its graph; targets, temperatures: `[tokens]`.
        loss: the chunk's share of the loss.
        after_chunk: called after each backward pass, to take gradients out of low precision.
    """
    leaves = [chunk.detach().requires_grad_() for chunk in hidden.split(HEAD_CHUNK_TOKENS)]
    start = 0
    for leaf in leaves:
        place = slice(start, start + len(leaf))
        logprobs, entropies = token_logprobs(head, leaf, targets[place], temperatures[place])
        loss(logprobs, entropies, place).backward()
        after_chunk()
        start = place.stop
    hidden.backward(torch.cat([leaf.grad for leaf in leaves if leaf.grad is not None]))
    after_chunk()


class _SoftmaxStatistics(torch.autograd.Function):
    """Keeps the logits in their own precision and makes the fp32 softmax again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        log_softmax = (logits.float() / temperatures[:, None]).log_softmax(dim=-1)  # [tokens, vocabulary]
        logprobs = log_softmax.gather(1, targets[:, None])[:, 0]
        entropies = -(log_softmax.exp() * log_softmax).sum(dim=-1)
        ctx.save_for_backward(logits, targets, temperatures, entropies)
        ctx.set_materialize_grads(False)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        logits, targets, temperatures, entropies = ctx.saved_tensors
        grad_logprobs, grad_entropies = grads
        log_softmax = (logits.float() / temperatures[:, None]).log_softmax(dim=-1)
        softmax = log_softmax.exp()
        grad = torch.zeros_like(softmax) if grad_logprobs is None else softmax * -grad_logprobs[:, None]
        if grad_logprobs is not None:
            grad.scatter_add_(1, targets[:, None], grad_logprobs[:, None])
        if grad_entropies is not None:
            # d entropy / d logit = -p (log p + entropy)
            grad -= softmax * (log_softmax + entropies[:, None]) * grad_entropies[:, None]
        return (grad / temperatures[:, None]).to(logits.dtype), None, None
