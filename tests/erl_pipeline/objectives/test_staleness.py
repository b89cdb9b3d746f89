"""Importance weights of stored rollouts, summed up by hand."""

from __future__ import annotations

import math

import pytest
import torch

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.objectives.staleness import effective_sample_size, summarize_weights
from tests.erl_pipeline.episodes.script import row

TOKEN = DecoupledCorrection(type="decoupled", cap=2.0)


def test_effective_sample_size_is_the_share_of_samples_that_weights_are_worth() -> None:
    assert effective_sample_size(torch.tensor([1.0, 1.0, 1.0])) == 1.0
    assert effective_sample_size(torch.tensor([3.0, 1.0])) == 16 / (2 * 10)
    assert effective_sample_size(torch.tensor([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert effective_sample_size(torch.tensor([0.0, 0.0])) == 0.0


def test_token_weights_are_summed_up_by_hand() -> None:
    """Ratios 4, 1 and 1/2; the first is capped at 2."""
    rows = [row(math.log(0.1), math.log(0.5)), row(math.log(0.4))]
    logprobs = [torch.tensor([math.log(0.4), math.log(0.5)]), torch.tensor([math.log(0.2)])]
    found = summarize_weights(rows, logprobs, TOKEN)
    assert found.tokens == 3
    assert found.effective_sample_size == pytest.approx(5.5**2 / (3 * 17.25))
    assert found.effective_sample_size_capped == pytest.approx(3.5**2 / (3 * 5.25))
    assert found.capped == pytest.approx(1 / 3)
    assert found.weight_mean == pytest.approx(3.5 / 3)
    # k3 of one token: ratio - 1 - log ratio
    assert found.behaviour_kl == pytest.approx(((3 - math.log(4)) + 0 + (-0.5 + math.log(2))) / 3)


def test_at_sequence_level_a_sequence_is_one_sample() -> None:
    """Products 4 * 1 = 4 and 1/2; masked above 2."""
    correction = DecoupledCorrection(type="decoupled", level="sequence", mode="mask", cap=2.0)
    rows = [row(math.log(0.1), math.log(0.5)), row(math.log(0.4))]
    logprobs = [torch.tensor([math.log(0.4), math.log(0.5)]), torch.tensor([math.log(0.2)])]
    found = summarize_weights(rows, logprobs, correction)
    assert found.effective_sample_size == pytest.approx(4.5**2 / (2 * 16.25))
    assert found.effective_sample_size_capped == pytest.approx(0.5)
    assert found.capped == 0.5
    assert found.weight_mean == pytest.approx(0.25)


def test_nothing_to_train_has_no_weights() -> None:
    assert summarize_weights([], [], TOKEN).tokens == 0
