from __future__ import annotations

import math

import pytest
import torch

from erl_pipeline.objectives.policy_gradient import Surrogate, cispo_surrogate, clipped_surrogate


def surrogate(ratio: float, advantage: float, dual_clip: float | None = None) -> tuple[Surrogate, float]:
    """Surrogate of one token at clip range 0.2 / 0.3, and the gradient of its loss."""
    logprobs = torch.tensor([math.log(ratio)], requires_grad=True)
    result = clipped_surrogate(
        logprobs,
        torch.zeros(1),
        torch.tensor([advantage]),
        lowest_ratio=torch.tensor([0.8]),
        highest_ratio=torch.tensor([1.3]),
        dual_clip=None if dual_clip is None else torch.tensor([dual_clip]),
    )
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    return result, float(gradient)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # inside the range: the loss is -ratio * advantage, and so is its gradient
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.6, 0.0),  # clipped at 1.3
        (0.5, 2.0, -1.0, -1.0),  # below the range, but a positive advantage increases the ratio: not clipped
        (0.5, -2.0, 1.6, 0.0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0),  # above the range, but a negative advantage decreases the ratio: not clipped
    ],
)
def test_clips_only_what_would_go_further(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    result, actual_gradient = surrogate(ratio, advantage)
    assert result.loss.item() == pytest.approx(loss)
    assert actual_gradient == pytest.approx(gradient)
    assert result.clipped.item() is (gradient == 0.0)
    assert result.ratio.item() == pytest.approx(ratio)


def test_dual_clip_bounds_the_loss_of_a_negative_advantage() -> None:
    result, gradient = surrogate(5.0, -2.0, dual_clip=3.0)
    assert result.loss.item() == pytest.approx(6.0)  # not 10
    assert gradient == 0.0
    assert result.clipped.item() is True
    assert surrogate(2.0, -2.0, dual_clip=3.0)[0].loss.item() == pytest.approx(4.0)
    assert surrogate(5.0, 2.0, dual_clip=3.0)[0].loss.item() == pytest.approx(-2.6)
    unbounded, gradient = surrogate(5.0, -2.0, dual_clip=math.inf)
    assert (unbounded.loss.item(), gradient) == pytest.approx((10.0, 10.0))
    assert surrogate(5.0, 0.0, dual_clip=math.inf)[1] == 0.0


def test_far_off_tokens_stay_finite() -> None:
    result = clipped_surrogate(
        torch.tensor([0.0, -500.0]),
        torch.tensor([-500.0, 0.0]),
        torch.tensor([-1.0, 1.0]),
        lowest_ratio=torch.tensor([0.8]),
        highest_ratio=torch.tensor([1.2]),
    )
    assert result.ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)])


@pytest.mark.parametrize(
    ("ratio", "advantage", "coefficient", "clipped"),
    [
        (1.5, 2.0, 2.2, True),  # 1.1 x 2; PPO gives no gradient here
        (0.5, -1.0, -0.9, True),  # 0.9 x -1
        (1.05, 2.0, 2.1, False),
    ],
)
def test_cispo_weighs_log_probabilities_by_the_clipped_ratio(
    ratio: float, advantage: float, coefficient: float, clipped: bool
) -> None:
    """The gradient of the log-probability is `clip(ratio, 0.9, 1.1) x advantage`, however large it is."""
    old = -0.5
    logprobs = torch.tensor([old + math.log(ratio)], requires_grad=True)
    bounds = {"lowest_ratio": torch.tensor([0.9]), "highest_ratio": torch.tensor([1.1])}
    result = cispo_surrogate(logprobs, torch.tensor([old]), torch.tensor([advantage]), **bounds)
    (gradient,) = torch.autograd.grad(result.loss.sum(), logprobs)
    assert -float(gradient) == pytest.approx(coefficient)
    assert float(result.ratio) == pytest.approx(ratio)
    assert bool(result.clipped) is clipped
