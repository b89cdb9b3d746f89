from __future__ import annotations

import subprocess
import sys

import torch

from erl_pipeline.policies.hardware import bfloat16_is_native, training_device


def test_the_training_device_can_hold_a_tensor() -> None:
    device = training_device()
    assert torch.ones(2, device=device).sum().item() == 2.0
    assert isinstance(bfloat16_is_native(device), bool)


DETERMINISTIC = """
import os, torch
from erl_pipeline.policies.hardware import add_in_fixed_order, adds_in_fixed_order
gpu, cpu = torch.device("cuda"), torch.device("cpu")
print(adds_in_fixed_order(gpu), adds_in_fixed_order(cpu))
add_in_fixed_order()
print(adds_in_fixed_order(gpu), adds_in_fixed_order(cpu), torch.are_deterministic_algorithms_enabled())
print(*(os.environ[name] for name in ("CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NCCL_PROTO")))
"""


def test_a_process_can_be_told_to_add_in_a_fixed_order() -> None:
    """In a process of its own, whose other tests would go on in this mode."""
    done = subprocess.run([sys.executable, "-c", DETERMINISTIC], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False True", "True True True", ":4096:8 Ring Simple"]
