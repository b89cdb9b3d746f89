"""Small random models of two architectures, and sequences to train them on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from erl_pipeline.trainers.sequences import TrainingSequence
from tests.random_models import random_gpt2, random_llama

VOCABULARY = 31


def gpt2() -> PreTrainedModel:
    """Learned positions, a separate output head, and dropout that training must not use."""
    return random_gpt2(VOCABULARY, hidden=32, positions=64, resid_pdrop=0.5, bos_token_id=1, eos_token_id=2)


def llama() -> PreTrainedModel:
    """Rotary positions, grouped key-value heads, tied embeddings."""
    return random_llama(VOCABULARY, hidden=32, intermediate=48, heads=4, key_value_heads=2, positions=64)


@pytest.fixture(params=[gpt2, llama])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    model: PreTrainedModel = request.param()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # attention that is far from uniform shows masks that are wrong
    return model


@pytest.fixture
def make_model() -> Callable[[], PreTrainedModel]:
    """The same random Llama at every call."""
    return llama


@pytest.fixture
def sequences() -> list[TrainingSequence]:
    """Two prompts with several responses, one of a single token, and two prompts of their own.

    Zeros in a mask are environment tokens; some responses end on them.
    """
    rows = [
        ((3, 9, 4, 1, 5), (7, 8, 9), (1, 1, 1), 1.0),
        ((3, 9, 4, 1, 5), (2,), (1,), -0.5),
        ((3, 9, 4, 1, 5), (6, 5, 3, 5, 8, 9), (1, 0, 0, 1, 1, 0), 0.3),
        ((11, 12), (13, 14, 15, 16), (0, 1, 1, 0), -1.0),
        ((11, 12), (17, 18, 19), (1, 1, 1), 0.5),
        ((20, 21, 22, 23, 24, 25, 26, 27), (28, 29, 30), (1, 1, 1), 2.0),
        ((5, 4), (10, 11, 12, 13, 14, 15, 16, 17, 18), (1,) * 9, -0.7),
    ]
    return [
        TrainingSequence(
            trajectory_id=f"trajectory-{index}",
            role="first_attempt",
            prompt_token_ids=prompt,
            response_token_ids=response,
            response_mask=mask,
            behaviour_logprobs=tuple(-3.0 * bit for bit in mask),
            advantage=advantage,
        )
        for index, (prompt, response, mask, advantage) in enumerate(rows)
    ]
