from __future__ import annotations

import torch

from erl_pipeline.policies.hardware import bfloat16_is_native, training_device


def test_the_training_device_can_hold_a_tensor() -> None:
    device = training_device()
    assert torch.ones(2, device=device).sum().item() == 2.0
    assert isinstance(bfloat16_is_native(device), bool)
