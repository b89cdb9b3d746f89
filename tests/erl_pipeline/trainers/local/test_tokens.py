"""The columns of trained tokens, and log-probabilities without the vocabulary's logits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from erl_pipeline.trainers.local import tokens as module
from erl_pipeline.trainers.local.tokens import backward_through_head, token_columns, token_logprobs
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


def test_logprob_and_entropy_after_temperature() -> None:
    # Logits 0 and log 9 at temperature 2 are odds of 1 to 3.
    head = torch.nn.Identity()
    logits = torch.tensor([[0.0, math.log(9.0)]])
    logprobs, entropies = token_logprobs(head, logits, torch.tensor([0]), torch.tensor([2.0]))
    assert logprobs.item() == pytest.approx(math.log(0.25))
    assert entropies.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_gradients_are_those_of_the_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=generator, requires_grad=True)
    targets, temperatures = torch.tensor([0, 6, 3, 3, 1]), torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0])
    scales = torch.randn(2, 5, generator=generator)
    log_softmax = (logits / temperatures[:, None]).log_softmax(-1)
    loss = scales[0] @ log_softmax[range(5), targets] - scales[1] @ (log_softmax.exp() * log_softmax).sum(-1)
    (expected,) = torch.autograd.grad(loss, logits)

    logprobs, entropies = token_logprobs(torch.nn.Identity(), logits, targets, temperatures)
    (actual,) = torch.autograd.grad(scales[0] @ logprobs + scales[1] @ entropies, logits)
    torch.testing.assert_close(actual, expected)


def test_a_vocabulary_that_is_larger_than_a_block_is_looked_at_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    targets, temperatures = torch.tensor([0, 6, 3]), torch.ones(3)
    expected = token_logprobs(torch.nn.Identity(), logits, targets, temperatures)
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 6)
    torch.testing.assert_close(token_logprobs(torch.nn.Identity(), logits, targets, temperatures), expected)


def test_chunks_give_the_gradients_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(10, 4, generator=generator)
    targets, temperatures = torch.arange(10) % 6, torch.ones(10)
    weights = torch.randn(10, generator=generator)
    body, head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 6, bias=False)
    logprobs, _ = token_logprobs(head, body(inputs), targets, temperatures)
    expected = torch.autograd.grad(weights @ logprobs, [body.weight, head.weight])

    monkeypatch.setattr(module, "HEAD_CHUNK_TOKENS", 3)
    places: list[slice] = []

    def loss(logprobs: torch.Tensor, entropies: torch.Tensor, place: slice) -> torch.Tensor:
        places.append(place)
        return weights[place] @ logprobs

    backward_through_head(head, body(inputs), targets, temperatures, loss, after_backward=lambda: None)
    assert places == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)]
    torch.testing.assert_close(body.weight.grad, expected[0])
    torch.testing.assert_close(head.weight.grad, expected[1])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_rank_without_a_microbatch_goes_backward_over_no_tokens(device: str) -> None:
    """The device "meta" takes the way of a GPU. The head's gradient is there, for the sum over the ranks."""
    head = torch.nn.Linear(4, 6, bias=False, device=device)
    hidden = torch.zeros(0, 4, device=device, requires_grad=True)
    targets, temperatures = torch.zeros(0, dtype=torch.long, device=device), torch.ones(0, device=device)

    def loss(logprobs: torch.Tensor, entropies: torch.Tensor, place: slice) -> torch.Tensor:
        return logprobs.sum()

    backward_through_head(head, hidden, targets, temperatures, loss, after_backward=lambda: None)
    assert hidden.grad is not None
    assert hidden.grad.shape == (0, 4)
    assert head.weight.grad is not None
