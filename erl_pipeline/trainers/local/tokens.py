"""What is known about each trained token of an optimizer batch, as columns, and log-probabilities of chosen
tokens from hidden states, without keeping the vocabulary's logits.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.objectives.policy_gradient import LossNormalization, token_weights
from erl_pipeline.trainers.local.block_attention import moved
from erl_pipeline.trainers.sequences import TrainingSequence

HEAD_CHUNK_TOKENS = 512
"""Number of tokens whose logits exist at the same time."""

_BLOCK_ELEMENTS = 2**20  # 4 MiB of fp32

PlainTokenLoss = Callable[[torch.Tensor, torch.Tensor, slice], torch.Tensor]
"""Maps a chunk's log-probabilities and entropies (`[chunk]`, fp32) and its place to its share of the loss."""

SupportLogprobs = tuple[torch.Tensor, torch.Tensor]
"""Log-probabilities in nats of chosen tokens at each place, `[tokens, chosen]`, and of all others together,
`[tokens]`, -inf where there are no others. Both fp32."""


@dataclass(frozen=True)
class SupportedTokenLoss:
    """A loss that also reads log-probabilities of the tokens `ids`, `[tokens, chosen]`, int64; `loss` gets
    those of a chunk as its last argument."""

    loss: Callable[[torch.Tensor, torch.Tensor, slice, SupportLogprobs | None], torch.Tensor]
    ids: torch.Tensor

    def __call__(
        self,
        logprobs: torch.Tensor,
        entropies: torch.Tensor,
        place: slice,
        support: SupportLogprobs | None = None,
    ) -> torch.Tensor:
        return self.loss(logprobs, entropies, place, support)


TokenLoss = PlainTokenLoss | SupportedTokenLoss


def token_logprobs(
    head: torch.nn.Module, hidden: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and entropy of its distribution in nats, after temperature.

    Args:
        head: maps hidden states to logits.
        hidden: `[tokens, hidden]`; targets: `[tokens]`; temperatures: `[tokens]`, fp32.

    Returns two fp32 tensors `[tokens]`, with gradients to `hidden` and the head's weights.
    """
    return logit_statistics(head(hidden), targets, temperatures)


def logit_statistics(
    logits: torch.Tensor, targets: torch.Tensor, temperatures: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs` from the logits, `[tokens, vocabulary]`."""
    statistics: Callable[..., tuple[torch.Tensor, torch.Tensor]] = _SoftmaxStatistics.apply
    return statistics(logits, targets, temperatures)


def support_logprobs(logits: torch.Tensor, ids: torch.Tensor, temperatures: torch.Tensor) -> SupportLogprobs:
    """Log-probabilities of the tokens `ids`, `[tokens, chosen]`, and of all others together, from the logits
    `[tokens, vocabulary]`, with gradients to these."""
    support: Callable[..., SupportLogprobs] = _SupportStatistics.apply
    return support(logits, ids, temperatures)


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
        logits = head(leaf)
        logprobs, entropies = logit_statistics(logits, targets[place], temperatures[place])
        if isinstance(loss, SupportedTokenLoss):
            support = support_logprobs(logits, loss.ids[place], temperatures[place])
            share = loss(logprobs, entropies, place, support)
        else:
            share = loss(logprobs, entropies, place)
        del logits
        share.backward()
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
                factor = (log_softmax + entropies[rows, None]).mul_(-grad_entropies[rows, None])
                grad = log_softmax.exp_().mul_(factor.sub_(grad_logprobs[rows, None]))
            grad.scatter_add_(1, targets[rows, None], grad_logprobs[rows, None])
            result[rows] = grad.div_(temperatures[rows, None])
        return result, None, None


class _SupportStatistics(torch.autograd.Function):
    """As `_SoftmaxStatistics`, for several tokens at each place and all others together."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, ids: torch.Tensor, temperatures: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normalizers = torch.empty_like(temperatures)
        others = torch.empty_like(temperatures)  # log-sum-exp of all other logits
        for rows in _blocks(logits):
            scaled = logits[rows] / temperatures[rows, None]
            normalizers[rows] = scaled.logsumexp(dim=-1)
            others[rows] = scaled.scatter_(1, ids[rows], -torch.inf).logsumexp(dim=-1)
        ctx.save_for_backward(logits, ids, temperatures, normalizers, others)
        chosen = logits.gather(1, ids) / temperatures[:, None]  # fp32 by promotion
        return chosen - normalizers[:, None], others - normalizers

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, ids, temperatures, normalizers, others = ctx.saved_tensors
        grad_chosen, grad_others = grads
        result = torch.empty_like(logits)
        for rows in _blocks(logits):
            scaled = logits[rows] / temperatures[rows, None]
            whole = grad_chosen[rows].sum(dim=-1) + grad_others[rows]
            grad = (scaled - normalizers[rows, None]).exp_().mul_(-whole[:, None])
            # d log(sum of others) / d logit = their softmax; without others the logits left are all -inf
            rest = scaled.scatter_(1, ids[rows], -torch.inf).sub_(others[rows, None]).exp_()
            grad.add_(rest.nan_to_num_(nan=0.0).mul_(grad_others[rows, None]))
            result[rows] = grad.scatter_add_(1, ids[rows], grad_chosen[rows]).div_(temperatures[rows, None])
        return result, None, None


def _blocks(logits: torch.Tensor) -> Iterator[slice]:
    """Rows that are processed together: few on a CPU, all on a GPU."""
    rows = max(1, _BLOCK_ELEMENTS // logits.shape[1] if logits.device.type == "cpu" else len(logits))
    for start in range(0, len(logits), rows):
        yield slice(start, start + rows)


@dataclass(frozen=True)
class TokenColumns:
    """All columns are `[trained]`, sequence by sequence, on the model's device, fp32 unless stated.

    `sequence` (int64) numbers the sequences from 0. `policy_weights` and `regularizer_weights` are the
    factors of a token's policy loss and of its KL and entropy terms: the former are normalised over the
    sequences with an advantage, the latter over all.
    """

    sequence: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    temperatures: torch.Tensor
    policy_weights: torch.Tensor
    regularizer_weights: torch.Tensor


def token_columns(
    sequences: Sequence[TrainingSequence],
    normalization: LossNormalization,
    device: torch.device,
    policy_share: float = 1.0,
    length: int = 1,
) -> TokenColumns:
    """Columns of a whole optimizer batch, before it is cut into microbatches.

    Args:
        policy_share: multiplies `policy_weights`; the share of all rows that have an advantage, where the
            policy loss is normalised over all rows.
        length: see `token_weights`.
    """
    counts = [sequence.trained_tokens for sequence in sequences]
    with_advantage = [i for i, sequence in enumerate(sequences) if sequence.has_advantage]
    policy_weights = [0.0] * len(sequences)
    if with_advantage:
        weights = token_weights([counts[i] for i in with_advantage], normalization, length)
        for i, weight in zip(with_advantage, weights, strict=True):
            policy_weights[i] = weight * sequences[i].weight * policy_share
    regularizer_weights = [
        weight * sequence.weight
        for weight, sequence in zip(token_weights(counts, normalization, length), sequences, strict=True)
    ]

    def column(values: Sequence[float]) -> torch.Tensor:
        return by_token(np.array(values, dtype=np.float32), counts, device)

    weighed = column(policy_weights)
    if any(sequence.apart for sequence in sequences):
        weighed = moved(_weights_apart(sequences, normalization, policy_share, length), device)
    behaviour = [sequence.trained_behaviour_logprobs for sequence in sequences]
    advantages = [sequence.trained_advantages for sequence in sequences]
    return TokenColumns(
        sequence=by_token(np.arange(len(sequences)), counts, device),
        behaviour_logprobs=moved(np.concatenate([np.zeros(0), *behaviour]).astype(np.float32), device),
        advantages=moved(np.concatenate([np.zeros(0), *advantages]).astype(np.float32), device),
        temperatures=column([sequence.temperature for sequence in sequences]),
        policy_weights=weighed,
        regularizer_weights=column(regularizer_weights),
    )


def _weights_apart(
    sequences: Sequence[TrainingSequence], normalization: LossNormalization, policy_share: float, length: int
) -> npt.NDArray[np.float32]:
    """The policy weights of tokens, `[trained]`, where some are averaged apart from all others: each kind as
    if it were alone."""
    apart = [sequence.trained_apart for sequence in sequences]
    weights = [np.zeros(len(each)) for each in apart]
    for kind in (False, True):
        chosen = [(each > 0) == kind for each in apart]
        with_loss = [i for i, sequence in enumerate(sequences) if sequence.has_advantage and chosen[i].any()]
        if not with_loss:
            continue
        shares = token_weights([int(chosen[i].sum()) for i in with_loss], normalization, length)
        for i, share in zip(with_loss, shares, strict=True):
            factor = apart[i][chosen[i]] if kind else 1.0
            weights[i][chosen[i]] = share * sequences[i].weight * policy_share * factor
    return np.concatenate(weights).astype(np.float32)


@dataclass(frozen=True)
class RoleColumns:
    """The objective's settings for each trained token, by the role of its sequence; `[trained]`, fp32.

    `role` (int64) is the index of the token's role in `roles`. `dual_clip` is infinite where a role has none,
    and None where no role has one.
    """

    roles: tuple[str, ...]
    role: torch.Tensor
    lowest_ratio: torch.Tensor
    highest_ratio: torch.Tensor
    dual_clip: torch.Tensor | None
    kl_coefficients: torch.Tensor
    entropy_coefficients: torch.Tensor
    has_entropy: bool
    """Whether any entropy coefficient is above 0."""


def role_columns(
    sequences: Sequence[TrainingSequence],
    objective: ObjectiveConfig,
    roles: Sequence[str],
    device: torch.device,
) -> RoleColumns:
    """Columns of a whole optimizer batch. `roles`: those of the whole update, in the order of their
    numbers."""
    numbers = {role: number for number, role in enumerate(roles)}
    known = {role: objective.terms(role) for role in roles}
    terms = [known[sequence.role] for sequence in sequences]
    counts = [sequence.trained_tokens for sequence in sequences]

    def column(values: Sequence[float]) -> torch.Tensor:
        return by_token(np.array(values, dtype=np.float32), counts, device)

    dual_clips = [math.inf if each.dual_clip is None else each.dual_clip for each in terms]
    return RoleColumns(
        roles=tuple(roles),
        role=by_token(np.array([numbers[s.role] for s in sequences], dtype=np.int64), counts, device),
        lowest_ratio=column([1 - each.clip_low for each in terms]),
        highest_ratio=column([1 + each.clip_high for each in terms]),
        dual_clip=None if all(map(math.isinf, dual_clips)) else column(dual_clips),
        kl_coefficients=column([each.kl_coefficient for each in terms]),
        entropy_coefficients=column([each.entropy_coefficient for each in terms]),
        has_entropy=any(each.entropy_coefficient > 0 for each in terms),
    )


def by_token(values: npt.NDArray[Any], counts: Sequence[int], device: torch.device) -> torch.Tensor:
    """The value of each sequence once for each of its tokens. Repeating it on the device would make the
    program wait for the device, to know how many tokens there are."""
    return moved(np.repeat(values, counts), device)
