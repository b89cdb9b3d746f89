"""Divergences and contrasts of two tokens over four words, worked out by hand.

The policy's logits are (1, .5, -.5, 0) and (.2, -.3, .8, .1), its probabilities p (.455, .276, .102, .167)
and (.231, .140, .420, .209). The teacher's q are (.5, .2, .2, .1) and (.1, .1, .7, .1). Words 1 and 2 were
sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from erl_pipeline.objectives.self_distillation import (
    contrast,
    divergence,
    modulated_addition,
    modulation,
    sampled_token_loss,
)
from erl_pipeline.trainers.local.tokens import support_logprobs

LOGITS = torch.tensor([[1.0, 0.5, -0.5, 0.0], [0.2, -0.3, 0.8, 0.1]], dtype=torch.float64)
TEACHER = torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1]], dtype=torch.float64).log()
SAMPLED = torch.tensor([[1], [2]])
TOP_TWO = torch.tensor([[0, 1], [2, 0]])
TEACHERS_TOP_TWO = torch.tensor([[0.5, 0.2, 0.3], [0.7, 0.1, 0.2]], dtype=torch.float64).log()
Loss = Callable[[torch.Tensor], torch.Tensor]


def whole(logits: torch.Tensor, **kind: object) -> torch.Tensor:
    return divergence(logits.log_softmax(-1), TEACHER, **kind)  # type: ignore[arg-type]


def top_two(logits: torch.Tensor, kind: object) -> torch.Tensor:
    chosen, others = support_logprobs(logits, TOP_TWO, torch.ones(2, dtype=torch.float64))
    student = torch.cat([chosen, others[:, None]], dim=1)
    return divergence(student, TEACHERS_TOP_TWO, kind)  # type: ignore[arg-type]


def sampled(logits: torch.Tensor) -> torch.Tensor:
    logprobs, taught = (each.gather(1, SAMPLED)[:, 0] for each in (logits.log_softmax(-1), TEACHER))
    return sampled_token_loss(logprobs, taught)


HAND_NUMBERS: dict[str, tuple[Loss, list[float], list[float]]] = {
    "forward": (
        partial(whole, kind="forward"),
        [0.066731, 0.165925],
        [-0.044946, 0.076004, -0.098464, 0.067405, 0.130761, 0.039964, -0.279526, 0.108801],
    ),
    "reverse": (
        partial(whole, kind="reverse"),
        [0.063462, 0.179430],
        [-0.071741, 0.071385, -0.075275, 0.075631, 0.151560, 0.021944, -0.289760, 0.116257],
    ),
    "jsd .5": (
        partial(whole, kind="jsd", beta=0.5),
        [0.016057, 0.042366],
        [-0.014709, 0.018174, -0.020905, 0.017440, 0.033731, 0.007926, -0.068909, 0.027253],
    ),
    "jsd .1": (
        partial(whole, kind="jsd", beta=0.1),
        [0.005945, 0.014959],
        [-0.004319, 0.006758, -0.008523, 0.006084, 0.011777, 0.003444, -0.024972, 0.009751],
    ),
    "sampled token": (
        sampled,
        [-0.414651, 0.441588],
        [-0.146573, 0.233198, -0.032705, -0.053921, 0.117618, 0.071339, -0.295383, 0.106425],
    ),
    "reverse, two words and all others": (
        partial(top_two, kind="reverse"),
        [0.016646, 0.172592],
        [-0.050437, 0.084306, -0.012787, -0.021082, 0.153138, 0.053674, -0.286885, 0.080073],
    ),
    "forward, two words and all others": (
        partial(top_two, kind="forward"),
        [0.015463, 0.161951],
        [-0.044946, 0.076004, -0.011726, -0.019333, 0.130761, 0.059701, -0.279526, 0.089064],
    ),
}


@pytest.mark.parametrize("name", HAND_NUMBERS)
def test_values_and_gradients(name: str) -> None:
    loss, values, gradients = HAND_NUMBERS[name]
    logits = LOGITS.clone().requires_grad_()

    found = loss(logits)

    assert found.tolist() == pytest.approx(values, abs=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    assert gradient.flatten().tolist() == pytest.approx(gradients, abs=1e-6)


@pytest.mark.parametrize("name", [each for each in HAND_NUMBERS if each != "sampled token"])
def test_gradients_are_central_differences(name: str) -> None:
    """The value of the sampled token's loss means nothing, so it has no part in this."""
    loss = HAND_NUMBERS[name][0]
    logits = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logits).sum(), logits)
    step = 1e-5
    for place in np.ndindex(2, 4):
        moved = torch.zeros_like(LOGITS)
        moved[place] = step
        difference = (loss(LOGITS + moved) - loss(LOGITS - moved)).sum() / (2 * step)
        assert float(gradient[place]) == pytest.approx(float(difference), abs=1e-9)


def test_the_gradient_of_sampled_tokens_averages_to_that_of_the_reverse_divergence() -> None:
    probabilities = LOGITS.softmax(-1)
    expected = torch.zeros_like(LOGITS)
    for word in range(4):
        logits = LOGITS.clone().requires_grad_()
        loss = sampled_token_loss(logits.log_softmax(-1)[:, word], TEACHER[:, word])
        expected += probabilities[:, word, None] * torch.autograd.grad(loss.sum(), logits)[0]
    assert expected.flatten().tolist() == pytest.approx(HAND_NUMBERS["reverse"][2], abs=1e-6)


def test_terms_of_some_words_alone_may_be_negative() -> None:
    chosen = TOP_TWO[:1]
    q, p = (each.softmax(-1)[:1].gather(1, chosen) for each in (TEACHER, LOGITS))
    found = divergence(p.log(), q.log(), "forward")
    assert found.tolist() == pytest.approx([-0.017324], abs=1e-6)


@pytest.mark.parametrize("kind", ["forward", "reverse", "jsd"])
def test_a_policy_that_is_its_teacher_has_no_loss_and_no_gradient(kind: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    teacher = LOGITS.log_softmax(-1).requires_grad_()

    found = divergence(logits.log_softmax(-1), teacher, kind)  # type: ignore[arg-type]
    gradients = torch.autograd.grad(found.sum(), [logits, teacher], allow_unused=True)

    assert found.tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    assert gradients[0].flatten().tolist() == pytest.approx([0.0] * 8, abs=1e-12)
    assert gradients[1] is None


def test_the_whole_vocabulary_leaves_no_other_words() -> None:
    logits = LOGITS.clone().requires_grad_()
    every = torch.arange(4).expand(2, 4)

    chosen, others = support_logprobs(logits, every, torch.ones(2, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(divergence(chosen, TEACHER, "reverse").sum(), logits)

    assert others.tolist() == [-np.inf, -np.inf]
    assert gradient.flatten().tolist() == pytest.approx(HAND_NUMBERS["reverse"][2], abs=1e-6)


def test_a_correct_hint_is_held_against_the_mean_of_wrong_ones() -> None:
    """e = log q(correct) - log mean q(wrong) is .019070 and .048751, r = .5 tanh(e / .02)."""
    found = contrast(np.array([-0.9, -0.4]), [np.array([-1.2, -0.4]), np.array([-0.7, -0.5])])
    assert found.tolist() == pytest.approx([0.019070, 0.048751], abs=1e-6)

    added = modulation(found, strength=0.5, temperature=0.02, limit=2.0)
    assert added.tolist() == pytest.approx([0.370684, 0.492423], abs=1e-6)
    assert modulation(found, strength=0.5, temperature=0.02, limit=0.4).tolist() == pytest.approx(
        [0.370684, 0.4], abs=1e-6
    )


@pytest.mark.parametrize(
    ("advantage", "modulated"),
    [(0.3, [0.670684, 0.792423]), (-0.3, [0.0, 0.0]), (0.0, [0.0, 0.0])],
)
def test_a_contrast_never_turns_the_sign_of_an_advantage(advantage: float, modulated: list[float]) -> None:
    found = advantage + modulated_addition(advantage, np.array([0.370684, 0.492423]))
    assert found.tolist() == pytest.approx(modulated, abs=1e-6)
