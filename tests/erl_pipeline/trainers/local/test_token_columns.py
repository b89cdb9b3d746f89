from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from erl_pipeline.trainers.local.token_columns import token_columns
from erl_pipeline.trainers.sequences import TrainingSequence

FIRST = TrainingSequence(
    "a", "first_attempt", (1,), (2, 3, 4), (1, 0, 1), (-0.5, 0.0, -0.25), 2.0, temperature=0.7
)
SECOND = TrainingSequence("b", "reflection", (1,), (5,), (1,), (-1.0,), -1.0, weight=0.5)


def test_columns_hold_the_trained_tokens_sequence_by_sequence() -> None:
    columns = token_columns([FIRST, SECOND], "token_mean", torch.device("cpu"))
    assert columns.sequence.tolist() == [0, 0, 1]
    assert columns.behaviour_logprobs.tolist() == [-0.5, -0.25, -1.0]
    assert columns.advantages.tolist() == [2.0, 2.0, -1.0]
    assert columns.temperatures.tolist() == pytest.approx([0.7, 0.7, 1.0])
    assert columns.policy_weights.tolist() == pytest.approx([1 / 3, 1 / 3, 0.5 / 3])


def test_policy_loss_is_normalised_by_sequences_with_an_advantage_alone() -> None:
    columns = token_columns([FIRST, replace(SECOND, advantage=0.0)], "token_mean", torch.device("cpu"))
    assert columns.policy_weights.tolist() == [0.5, 0.5, 0.0]
    assert columns.regularizer_weights.tolist() == pytest.approx([1 / 3, 1 / 3, 0.5 / 3])


def test_a_share_of_all_rows_scales_the_policy_loss_alone() -> None:
    """Two of six tokens have an advantage: their factor is 1/2 over live rows and 1/6 over all rows."""
    columns = token_columns([FIRST], "token_mean", torch.device("cpu"), policy_share=2 / 6)
    assert columns.policy_weights.tolist() == pytest.approx([1 / 6, 1 / 6])
    assert columns.regularizer_weights.tolist() == [0.5, 0.5]
