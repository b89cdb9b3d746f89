from __future__ import annotations

import math

import pytest
import torch

from erl_pipeline.objectives.policy_gradient import kl_estimate


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
