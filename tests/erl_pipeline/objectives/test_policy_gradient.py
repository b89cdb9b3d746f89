"""Losses of single tokens, importance weights and weights of tokens, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.objectives.policy_gradient import (
    LossNormalization,
    Surrogate,
    cispo_surrogate,
    clipped_surrogate,
    importance_weights,
    kl_estimate,
    kl_returns,
    replay_surrogate,
    sequence_log_ratios,
    surrogate_named,
    token_weights,
)
from storage.errors import ConfigError


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


# Ratios 2, 3, 1/2 in the first sequence and 1/4 in the second.
OLD = torch.tensor([2.0, 3.0, 0.5, 0.25]).log()
BEHAVIOUR = torch.zeros(4)
SEQUENCE = torch.tensor([0, 0, 0, 1])


def decoupled(**settings: Any) -> DecoupledCorrection:
    return DecoupledCorrection(type="decoupled", **settings)


def test_token_weights_above_the_cap_are_truncated() -> None:
    result = importance_weights(OLD, BEHAVIOUR, SEQUENCE, decoupled(level="token", mode="truncate", cap=2.5))
    assert result.weights.tolist() == pytest.approx([2.0, 2.5, 0.5, 0.25])
    assert result.capped.tolist() == [False, True, False, False]


def test_masked_weights_above_the_cap_become_zero() -> None:
    result = importance_weights(OLD, BEHAVIOUR, SEQUENCE, decoupled(level="token", mode="mask", cap=2.5))
    assert result.weights.tolist() == pytest.approx([2.0, 0.0, 0.5, 0.25])


def test_weights_below_the_floor_become_zero_too() -> None:
    result = importance_weights(OLD, BEHAVIOUR, SEQUENCE, decoupled(mode="mask", cap=2.5, floor=0.4))
    assert result.weights.tolist() == pytest.approx([2.0, 0.0, 0.5, 0.0])
    assert result.capped.tolist() == [False, True, False, True]


def test_the_ratio_of_a_sequence_is_the_geometric_mean() -> None:
    # (2 x 3 x 1/2)^(1/3) and 1/4.
    ratios = sequence_log_ratios(OLD, BEHAVIOUR, SEQUENCE).exp()
    assert ratios.tolist() == pytest.approx([3 ** (1 / 3)] * 3 + [0.25])


def test_sequence_weights_are_products_over_the_sequence() -> None:
    result = importance_weights(
        OLD, BEHAVIOUR, SEQUENCE, decoupled(level="sequence", mode="truncate", cap=10.0)
    )
    assert result.weights.tolist() == pytest.approx([3.0, 3.0, 3.0, 0.25])
    masked = importance_weights(OLD, BEHAVIOUR, SEQUENCE, decoupled(level="sequence", mode="mask", cap=2.5))
    assert masked.weights.tolist() == pytest.approx([0.0, 0.0, 0.0, 0.25])
    assert masked.capped.tolist() == [True, True, True, False]


def test_log_ratios_are_bounded() -> None:
    result = importance_weights(
        torch.tensor([0.0]),
        torch.tensor([-90.0]),
        torch.tensor([0]),
        decoupled(cap=1e12),
    )
    assert result.weights.item() == pytest.approx(math.exp(20))


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


def test_estimators_at_a_ratio_of_two() -> None:
    # d = log 2: k3 = 1/2 - 1 + log 2.
    policy, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert kl_estimate(policy, reference, "k1").item() == pytest.approx(0.6931472)
    assert kl_estimate(policy, reference, "k2").item() == pytest.approx(0.2402265)
    assert kl_estimate(policy, reference, "k3").item() == pytest.approx(0.1931472)


def test_k1_and_k3_have_the_divergence_as_their_mean() -> None:
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = 0.7 * math.log(7 / 3) + 0.2 * math.log(2 / 3) + 0.1 * math.log(1 / 4)
    for estimator in ("k1", "k3"):
        estimates = kl_estimate(policy.log(), reference.log(), estimator)
        assert float((policy * estimates).sum()) == pytest.approx(exact, abs=1e-6)
    assert bool((kl_estimate(policy.log(), reference.log(), "k3") >= 0).all())


def test_k2_has_the_gradient_of_the_divergence() -> None:
    logits, reference = torch.tensor([0.3, -0.2, 0.5], requires_grad=True), torch.tensor([0.3, 0.3, 0.4])
    exact = torch.softmax(logits, 0) @ (torch.log_softmax(logits, 0) - reference.log())
    (expected,) = torch.autograd.grad(exact, logits)
    logprobs = torch.log_softmax(logits, 0)
    mean = logprobs.exp().detach() @ kl_estimate(logprobs, reference.log(), "k2")
    (actual,) = torch.autograd.grad(mean, logits)
    assert actual.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


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
    assert token_weights(COUNTS, "sequence_sum", 8) == [1 / 16, 1 / 16]


def test_surrogates_are_found_by_name_with_the_same_arguments() -> None:
    one, low, high, dual = torch.ones(1), torch.tensor([0.9]), torch.tensor([1.1]), torch.tensor([2.0])
    given = (math.log(1.5) * one, torch.zeros(1), one)
    for name, loss in (("ppo", -1.1), ("cispo", -1.1 * math.log(1.5))):
        found = surrogate_named(name)(*given, lowest_ratio=low, highest_ratio=high, dual_clip=dual)
        assert found.loss.tolist() == pytest.approx([loss], abs=1e-6)
    with pytest.raises(ConfigError, match="clip: no such type of surrogates; there are cispo, ppo"):
        surrogate_named("clip")


def test_a_token_loses_its_own_divergence_and_that_of_what_follows() -> None:
    # Log-ratios 0.5, -0.2 and 0.3; their sums from each token on are 0.6, 0.1 and 0.3.
    sampled, reference = torch.tensor([-1.0, -1.2, -0.7]), torch.tensor([-1.5, -1.0, -1.0])
    assert kl_returns(sampled, reference, 0.1).tolist() == pytest.approx([-0.06, -0.01, -0.03])
