"""What can be promised about the bytes of a stage that computes with the policy."""

from __future__ import annotations

import torch

from erl_pipeline.config.generation import EngineConfig, VllmEngineConfig
from erl_pipeline.policies.hardware import adds_in_fixed_order
from storage.artifacts.manifest import Guarantee


def training_guarantee(device: torch.device) -> Guarantee:
    """`bytes` where the device adds up in a fixed order."""
    return "bytes" if adds_in_fixed_order(device) else "approximate"


def sampling_guarantee(engine: EngineConfig, device: torch.device) -> Guarantee:
    """Which sequences a server computes together depends on the moment, and with it how logits are rounded.

    One sequence at a time, on a server of our own whose prefix cache is empty at the start, is always
    computed alike.
    """
    if isinstance(engine, VllmEngineConfig) and (engine.servers or engine.max_in_flight > 1):
        return "approximate"
    return training_guarantee(device)
