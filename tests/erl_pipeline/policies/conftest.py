"""A whole checkpoint: a random Llama with a word-level tokenizer and a chat template."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.random_models import WORDS, word_tokenizer


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return word_tokenizer()


@pytest.fixture
def checkpoint(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=48,
        bos_token_id=1,
        eos_token_id=2,
    )
    folder = tmp_path / "checkpoint"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
