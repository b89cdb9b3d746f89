"""Small real runs that train an adapter: a Llama that has seen demonstrations, and how to run it."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.pipeline.context import open_context
from erl_pipeline.pipeline.outcome import Silent
from erl_pipeline.pipeline.train import TrainingSummary, train
from erl_pipeline.policies.tiny.cold_start import to_batch
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer

STEPS = 80
SETTINGS = {
    "name": "adapted",
    "iterations": 2,
    "threads": 1,
    "environment": {"training_boards": 32, "rows": [3, 3], "path_length": [1, 2], "max_steps": 2},
    "rollouts": {"tasks_per_iteration": 4, "group_size": 4, "tasks_per_shard": 2},
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
    """A Llama with tied embeddings that knows the words of the game; its heads have a size vLLM serves."""
    parts = ENVIRONMENT.require_tiny(config(folder).environment)
    positions = parts.context_length
    tokenizer = build_tokenizer(parts.words, positions)
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
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    episodes = parts.demonstrations(random.Random(0), ColdStartConfig())
    for _ in range(STEPS):
        shown = [row for _ in range(16) for row in next(episodes)]
        token_ids, trained = to_batch(shown, tokenizer)
        optimizer.zero_grad()
        model(input_ids=token_ids, labels=token_ids.masked_fill(~trained, -100)).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
