"""Small real runs that train an adapter, and move it whatever their policy does.

The policy is a Llama of random weights, which solves no task; a test must not wait for luck. An entropy
bonus gives every trajectory a gradient, with or without an advantage.
"""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.context import open_context
from erl_pipeline.pipeline.outcome import Silent
from erl_pipeline.pipeline.train import TrainingSummary, train
from erl_pipeline.policies.tiny.architecture import context_length
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer

SETTINGS = {
    "name": "adapted",
    "iterations": 2,
    "threads": 1,
    "environment": {"training_boards": 32, "rows": [3, 3], "path_length": [1, 2], "max_steps": 2},
    "rollouts": {"tasks_per_iteration": 4, "group_size": 4, "tasks_per_shard": 2},
    "objective": {"entropy_coefficient": 0.1},
    "optimizer": {"learning_rate": 0.02},
    "evaluation": {"tasks": 8},
    "memory": False,
}


def config(base: Path, **changes: object) -> RunConfig:
    """The configuration of a small run with a LoRA adapter on the checkpoint `base`."""
    policy = {"type": "pretrained", "model": str(base), "lora": {"rank": 4, "alpha": 8}}
    return RunConfig.model_validate({**SETTINGS, "policy": policy, **changes})


def run(settings: RunConfig, store: Path) -> TrainingSummary:
    """All stages of the run, in this process."""
    with open_context(settings, str(store), Silent(), threading.Event()) as context:
        return train(context)


def save_base(folder: Path) -> Path:
    """A Llama with tied embeddings whose tokenizer knows the words of the game; its heads have a size that
    vLLM serves. Its weights are large enough for a distribution that is far from even."""
    environment = config(folder).environment
    positions = context_length(environment)
    tokenizer = build_tokenizer(environment, positions)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=positions,
            tie_word_embeddings=True,
            initializer_range=0.1,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
