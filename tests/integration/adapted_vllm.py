"""A small run that trains an adapter and samples one sequence at a time from a vLLM server of its own.

Its entropy bonus moves the adapter whatever is rewarded, so that nothing depends on what the policy says.
"""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer
from tests.erl_pipeline.engines.vllm.small_policies import ENGINE
from tests.random_models import random_llama

WORLD = {"type": "frozen_lake", "training_boards": 8, "rows": [3, 3], "path_length": [1, 2], "max_steps": 2}


def write_config(folder: Path) -> Path:
    """The configuration, and the checkpoint that it names."""
    settings = {
        "name": "adapted",
        "iterations": 2,
        "resources": {"threads": 1},
        "runner": "in_process",
        "environment": WORLD,
        "policy": {
            "type": "pretrained",
            "model": str(save_base(folder / "base")),
            "lora": {"rank": 4, "alpha": 8},
        },
        "method": {"type": "erl", "memory": False},
        "engine": ENGINE.model_copy(update={"max_in_flight": 1}).model_dump(mode="json"),
        "rollouts": {"tasks_per_iteration": 2, "group_size": 2, "tasks_per_shard": 1},
        "optimizer": {"learning_rate": 0.05},
        "objective": {"entropy_coefficient": 1.0},
        "evaluation": {"tasks": 2},
        "metrics": [],
    }
    path = folder / "adapted.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def save_base(folder: Path) -> Path:
    """A random Llama with tied embeddings with the words of the game; it says nothing evenly."""
    parts = ENVIRONMENT.require_tiny(FrozenLakeConfig.model_validate(WORLD))
    tokenizer = build_tokenizer(parts.words, parts.context_length)
    model = random_llama(
        len(tokenizer),
        positions=parts.context_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.no_grad():
        model.get_input_embeddings().weight *= 4
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
