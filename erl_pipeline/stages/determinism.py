"""Whether a stage that computes with the policy gives the same bytes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.generation import EngineConfig, VllmEngineConfig
from storage.artifacts.manifest import Determinism

if TYPE_CHECKING:
    import torch


def training_determinism(device: torch.device) -> Determinism:
    """`bytes` on a CPU. A GPU adds up gradients in whatever order its threads finish."""
    return "bytes" if device.type == "cpu" else "approximate"


def sampling_determinism(engine: EngineConfig, device: torch.device) -> Determinism:
    """Timing decides which sequences a server computes together, and this decides how logits are rounded.

    One sequence at a time is always computed alike, on a single server of our own whose prefix cache is empty
    at the start.
    """
    if isinstance(engine, VllmEngineConfig) and (
        engine.others_servers or engine.replicas > 1 or engine.max_in_flight > 1
    ):
        return "approximate"
    return training_determinism(device)
