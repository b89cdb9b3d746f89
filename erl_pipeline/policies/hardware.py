"""The device that this machine computes on."""

from __future__ import annotations

import gc

import torch


def training_device() -> torch.device:
    """The first GPU where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def release_cached_memory() -> None:
    """Give GPU memory that no tensor uses back to the device, where another process can have it."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def bfloat16_is_native(device: torch.device) -> bool:
    """Whether the device multiplies bf16 matrices natively; elsewhere bf16 works, but slower than fp32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # avx512_bf16 or amx_bf16; without them oneDNN emulates.
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_tile"))


def adds_in_fixed_order(device: torch.device) -> bool:
    """Whether equal computations give equal bytes. A GPU adds up gradients in whatever order its threads
    finish."""
    return device.type == "cpu"
