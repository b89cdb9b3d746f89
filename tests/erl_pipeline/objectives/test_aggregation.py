from __future__ import annotations

import pytest

from erl_pipeline.objectives.policy_gradient import LossNormalization, token_weights

# Two sequences: one token with loss 6, three tokens with loss 2 each.
COUNTS = [1, 3]


def aggregated(normalization: LossNormalization) -> float:
    first, second = token_weights(COUNTS, normalization)
    return first * 6 + second * (2 + 2 + 2)


def test_token_mean_counts_every_token_alike() -> None:
    assert aggregated("token_mean") == pytest.approx((6 + 2 + 2 + 2) / 4)


def test_sequence_mean_counts_every_sequence_alike() -> None:
    assert aggregated("sequence_mean") == pytest.approx((6 + 2) / 2)


def test_sequence_sum_lets_long_sequences_weigh_more() -> None:
    assert aggregated("sequence_sum") == pytest.approx((6 + 6) / 2)
