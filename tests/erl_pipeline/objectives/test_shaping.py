"""Weights of replayed tokens and their gradients, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from erl_pipeline.objectives.shaping import replay_surrogate


def weight_and_slope(ratio: float, **settings: float | None) -> tuple[float, float]:
    """The shaped weight that replaces w in the loss, and the factor of the log-probability's gradient."""
    stored = torch.tensor([math.log(0.02)])
    logprobs = (stored + math.log(ratio)).requires_grad_()
    surrogate = replay_surrogate(logprobs, stored, torch.tensor([-1.0]), **settings)
    surrogate.loss.sum().backward()
    assert logprobs.grad is not None
    assert float(surrogate.ratio) == pytest.approx(ratio)
    assert float(surrogate.loss.detach()) == pytest.approx(float(surrogate.weight))
    return float(surrogate.weight), float(logprobs.grad)


@pytest.mark.parametrize(("ratio", "weight", "slope"), [(1.0, 0.9091, 0.0826), (0.1, 0.5, 0.25)])
def test_shaping_weighs_a_token_by_how_unlikely_it_has_become(
    ratio: float, weight: float, slope: float
) -> None:
    found = weight_and_slope(ratio, shaping_beta=0.1)
    assert found == pytest.approx((weight, slope), abs=5e-5)


def test_without_shaping_the_weight_is_the_ratio() -> None:
    assert weight_and_slope(3.0) == pytest.approx((3.0, 3.0))


def test_a_capped_weight_keeps_its_gradient() -> None:
    assert weight_and_slope(3.0, weight_cap=5.0) == pytest.approx((3.0, 3.0))
    assert weight_and_slope(20.0, weight_cap=5.0) == pytest.approx((5.0, 5.0))


def test_a_weight_is_shaped_or_capped() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        weight_and_slope(1.0, shaping_beta=0.1, weight_cap=5.0)
