"""The device that this machine computes on."""

import gc
import os

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


_FIXED_ORDER = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "NCCL_PROTO": "Simple",
}
"""Variables that CUDA's libraries read when they are first used. torch refuses matrix products in its
deterministic mode without the first. NCCL else chooses an algorithm by the message's size and what it has
measured; rings exclude sums within the switch (NVLS)."""


def add_in_fixed_order() -> None:
    """Have the GPUs of this process give equal bytes for equal computations; to be called before they are
    used. An operation that cannot then raises RuntimeError. Not tried on a GPU."""
    os.environ.update(_FIXED_ORDER)
    torch.use_deterministic_algorithms(True)


def adds_in_fixed_order(device: torch.device) -> bool:
    """Whether equal computations give equal bytes. A GPU adds up gradients in whatever order its threads
    finish, unless it was told not to."""
    return device.type == "cpu" or torch.are_deterministic_algorithms_enabled()


def kinds_of_gpus() -> list[str]:
    """The names of the GPUs that this process may use."""
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
