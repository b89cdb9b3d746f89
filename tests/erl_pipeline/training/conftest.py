"""Small random models of two architectures, and sequences to train them on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from erl_pipeline.training.sequences import TrainingSequence

VOCABULARY = 31


def gpt2() -> PreTrainedModel:
    """Learned positions, a head of its own, and dropout that training must not use."""
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


def llama() -> PreTrainedModel:
    """Rotary positions, grouped key-value heads, tied embeddings."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


@pytest.fixture(params=[gpt2, llama])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    model = request.param().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # attention that is far from uniform shows masks that are wrong
    return model


@pytest.fixture
def make_model() -> Callable[[], PreTrainedModel]:
    """The same random Llama at every call."""

    def make() -> PreTrainedModel:
        torch.manual_seed(0)
        return llama().eval()

    return make


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
