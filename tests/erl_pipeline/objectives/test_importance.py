from __future__ import annotations

import math

import pytest
import torch

from erl_pipeline.objectives.importance import importance_weights

# Ratios 2, 3, 1/2 in the first sequence and 1/4 in the second.
OLD = torch.tensor([2.0, 3.0, 0.5, 0.25]).log()
BEHAVIOUR = torch.zeros(4)
SEQUENCE = torch.tensor([0, 0, 0, 1])


def test_token_weights_above_the_cap_are_truncated() -> None:
    result = importance_weights(OLD, BEHAVIOUR, SEQUENCE, level="token", mode="truncate", cap=2.5)
    assert result.weights.tolist() == pytest.approx([2.0, 2.5, 0.5, 0.25])
    assert result.capped.tolist() == [False, True, False, False]


def test_masked_weights_above_the_cap_become_zero() -> None:
    result = importance_weights(OLD, BEHAVIOUR, SEQUENCE, level="token", mode="mask", cap=2.5)
    assert result.weights.tolist() == pytest.approx([2.0, 0.0, 0.5, 0.25])


def test_sequence_weights_are_products_over_the_sequence() -> None:
    result = importance_weights(OLD, BEHAVIOUR, SEQUENCE, level="sequence", mode="truncate", cap=10.0)
    assert result.weights.tolist() == pytest.approx([3.0, 3.0, 3.0, 0.25])
    masked = importance_weights(OLD, BEHAVIOUR, SEQUENCE, level="sequence", mode="mask", cap=2.5)
    assert masked.weights.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.25])
    assert masked.capped.tolist() == [True, True, True, False]


def test_log_ratios_are_bounded() -> None:
    result = importance_weights(
        torch.tensor([0.0]),
        torch.tensor([-90.0]),
        torch.tensor([0]),
        level="token",
        mode="truncate",
        cap=1e12,
    )
    assert result.weights.item() == pytest.approx(math.exp(20))
