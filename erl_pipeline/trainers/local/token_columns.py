"""What is known about each trained token of an optimizer batch, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from erl_pipeline.objectives.aggregation import LossNormalization, token_weights
from erl_pipeline.trainers.local.sequences import TrainingSequence


@dataclass(frozen=True)
class TokenColumns:
    """All columns are `[trained]`, sequence by sequence, on the model's device, fp32 unless said.

    `sequence` (int64) numbers the sequences from 0. `policy_weights` and `regularizer_weights` are the
    factors of a token's policy loss and of its KL and entropy: the former are normalised over the
    sequences with an advantage, the latter over all.
    """

    sequence: torch.Tensor
    behaviour_logprobs: torch.Tensor
    advantages: torch.Tensor
    temperatures: torch.Tensor
    policy_weights: torch.Tensor
    regularizer_weights: torch.Tensor


def token_columns(
    sequences: Sequence[TrainingSequence], normalization: LossNormalization, device: torch.device
) -> TokenColumns:
    """Columns of a whole optimizer batch, before it is cut into microbatches."""
    counts = [len(sequence.trained_offsets) for sequence in sequences]
    with_advantage = [i for i, sequence in enumerate(sequences) if sequence.advantage != 0.0]
    policy_weights = [0.0] * len(sequences)
    if with_advantage:
        weights = token_weights([counts[i] for i in with_advantage], normalization)
        for i, weight in zip(with_advantage, weights, strict=True):
            policy_weights[i] = weight * sequences[i].weight
    regularizer_weights = [
        weight * sequence.weight
        for weight, sequence in zip(token_weights(counts, normalization), sequences, strict=True)
    ]
    repeats = torch.tensor(counts, device=device)

    def column(values: Sequence[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device).repeat_interleave(repeats)

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
