"""The tiny policy's network: a stock GPT-2, which transformers trains and vLLM serves.

Learned positions suit prompts of fixed width: with rotary positions the cold start needs several
times as many steps. The head is untied, since servers may keep a stale tied head when weights are
swapped.
"""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from erl_pipeline.config.policy import TinyPolicyConfig


def build_model(
    policy: TinyPolicyConfig, tokenizer: PreTrainedTokenizerFast, positions: int, seed: int
) -> GPT2LMHeadModel:
    """A network with random weights that depend on `seed` alone."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=positions,
        n_embd=policy.hidden_size,
        n_layer=policy.layers,
        n_head=policy.heads,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)
