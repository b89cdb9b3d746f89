"""What is known about each trained token of an optimizer batch, as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.objectives.policy_gradient import LossNormalization, token_weights
from erl_pipeline.trainers.sequences import TrainingSequence


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
) -> TokenColumns:
    """Columns of a whole optimizer batch, before it is cut into microbatches.

    Args:
        policy_share: multiplies `policy_weights`; the share of all rows that have an advantage, where the
            policy loss is normalised over all rows.
    """
    counts = [len(sequence.trained_offsets) for sequence in sequences]
    with_advantage = [i for i, sequence in enumerate(sequences) if sequence.advantage != 0.0]
    policy_weights = [0.0] * len(sequences)
    if with_advantage:
        weights = token_weights([counts[i] for i in with_advantage], normalization)
        for i, weight in zip(with_advantage, weights, strict=True):
            policy_weights[i] = weight * sequences[i].weight * policy_share
    regularizer_weights = [
        weight * sequence.weight
        for weight, sequence in zip(token_weights(counts, normalization), sequences, strict=True)
    ]
    repeats = torch.tensor(counts, device=device)

    def column(values: Sequence[float]) -> torch.Tensor:
        return _by_token(values, repeats)

    behaviour = [
        sequence.behaviour_logprobs[offset] if sequence.behaviour_logprobs else 0.0
        for sequence in sequences
        for offset in sequence.trained_offsets
    ]
    return TokenColumns(
        sequence=torch.arange(len(sequences), device=device).repeat_interleave(repeats),
        behaviour_logprobs=torch.tensor(behaviour, dtype=torch.float32, device=device),
        advantages=column([sequence.advantage for sequence in sequences]),
        temperatures=column([sequence.temperature for sequence in sequences]),
        policy_weights=column(policy_weights),
        regularizer_weights=column(regularizer_weights),
    )


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
    repeats = torch.tensor([len(sequence.trained_offsets) for sequence in sequences], device=device)

    def column(values: Sequence[float]) -> torch.Tensor:
        return _by_token(values, repeats)

    dual_clips = [math.inf if each.dual_clip is None else each.dual_clip for each in terms]
    return RoleColumns(
        roles=tuple(roles),
        role=torch.tensor([numbers[s.role] for s in sequences], device=device).repeat_interleave(repeats),
        lowest_ratio=column([1 - each.clip_low for each in terms]),
        highest_ratio=column([1 + each.clip_high for each in terms]),
        dual_clip=None if all(map(math.isinf, dual_clips)) else column(dual_clips),
        kl_coefficients=column([each.kl_coefficient for each in terms]),
        entropy_coefficients=column([each.entropy_coefficient for each in terms]),
        has_entropy=any(each.entropy_coefficient > 0 for each in terms),
    )


def _by_token(values: Sequence[float], repeats: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=repeats.device).repeat_interleave(repeats)
