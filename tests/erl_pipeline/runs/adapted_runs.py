"""Small real runs that train an adapter.

The entropy bonus changes the adapter whatever is rewarded, so nothing depends on what the policy writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from tests.erl_pipeline.runs.small_runs import SMALL
from tests.random_models import save_llama

SETTINGS: Mapping[str, Any] = {
    **SMALL,
    "name": "adapted",
    "method": {"type": "erl", "memory": False},
    "optimizer": {"learning_rate": 0.05},
    "objective": {"entropy_coefficient": 1.0},
}


def config(base: Path, **changes: object) -> RunConfig:
    """The configuration of a small run with a LoRA adapter on the checkpoint `base`."""
    policy = {"type": "pretrained", "model": str(base), "lora": {"rank": 4, "alpha": 8}}
    return RunConfig.model_validate({**SETTINGS, "policy": policy, **changes})


def save_base(folder: Path) -> Path:
    """A random Llama with tied embeddings and the words of the game."""
    lake = RunConfig.model_validate(SETTINGS).environment
    assert isinstance(lake, FrozenLakeConfig)
    parts = ENVIRONMENT.tiny.require(lake)
    return save_llama(folder, parts.words, parts.context_length)
