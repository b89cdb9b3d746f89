"""Checks of what a run computes with: torch, its devices, their number types, memory."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil
import torch

from command_line.doctor.checks import Finding
from command_line.output import bytes_text
from erl_pipeline.policies.hardware import bfloat16_is_native

DEFAULT_RUN_BYTES = 2e9
"""Memory that the default configuration and Prefect's local server need together, with some to spare."""

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch can use; memory in bytes."""

    name: str
    memory: int
    capability: tuple[int, int]
    native_bfloat16: bool


def check_torch() -> Finding:
    """The build of torch, and the number of threads that it uses by default."""
    if torch.version.cuda is not None:
        build = f"CUDA {torch.version.cuda}"
    elif torch.version.hip is not None:
        build = f"ROCm {torch.version.hip}"
    else:
        build = "CPU"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = f"{torch.__version__}, {build} build, {torch.get_num_threads()} threads by default, {cores} cores"
    return Finding("torch", "ok", found)


def read_gpus() -> list[Gpu]:
    """The GPUs that torch can use."""
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(
            Gpu(
                properties.name,
                properties.total_memory,
                (properties.major, properties.minor),
                bfloat16_is_native(torch.device("cuda", index)),
            )
        )
    return gpus


def driver_is_there() -> bool:
    """Whether NVIDIA's driver is installed, whatever torch can do with it."""
    return shutil.which("nvidia-smi") is not None


def check_device(gpus: Sequence[Gpu], driver: bool, cuda_build: str | None) -> list[Finding]:
    """The devices for training: one finding for each GPU, or one for the CPU.

    Args:
        driver: whether NVIDIA's driver is installed.
        cuda_build: the CUDA version that torch was built for; None for another build.
    """
    if gpus:
        return [
            Finding(
                f"device cuda:{index}",
                "ok",
                f"{gpu.name}, {bytes_text(gpu.memory)}, compute capability "
                f"{gpu.capability[0]}.{gpu.capability[1]}"
                + ("; training uses this one" if not index else ""),
            )
            for index, gpu in enumerate(gpus)
        ]
    capability = torch.backends.cpu.get_cpu_capability()
    if driver and cuda_build is None:
        advice = "install a CUDA build of torch 2.13 to use the GPU"
        return [Finding("device", "warning", f"CPU ({capability}), though an NVIDIA driver is here", advice)]
    if driver:
        return [
            Finding(
                "device",
                "warning",
                f"CPU ({capability}): torch finds no usable GPU",
                f"look at nvidia-smi; torch was built for CUDA {cuda_build}, the driver may be older",
            )
        ]
    return [Finding("device", "ok", f"CPU ({capability})")]


def check_number_types(gpus: Sequence[Gpu]) -> Finding:
    """Number types of weights that the training device supports natively."""
    native = gpus[0].native_bfloat16 if gpus else bfloat16_is_native(torch.device("cpu"))
    if native:
        return Finding("number types", "ok", "float32 and bfloat16")
    return Finding(
        "number types",
        "warning",
        "float32; bfloat16 is emulated",
        "policy.dtype: bfloat16 works, with less memory and less speed than float32",
    )


def check_memory(total: int, available: int, limit: int | None) -> Finding:
    """Memory of this machine.

    Args:
        total, available: bytes of the machine, and how many of them a new program can have.
        limit: bytes that the container may use; None if it may use all.
    """
    usable = available if limit is None else min(available, limit)
    found = f"{bytes_text(available)} of {bytes_text(total)} free"
    if limit is not None and limit < total:
        found += f", container limited to {bytes_text(limit)}"
    if usable < DEFAULT_RUN_BYTES:
        return Finding(
            "memory",
            "problem",
            found,
            f"the default configuration needs {bytes_text(DEFAULT_RUN_BYTES)}: end other programs",
        )
    return Finding("memory", "ok", found)


def read_memory() -> tuple[int, int, int | None]:
    """Total and available bytes of the machine, and the container's limit."""
    memory = psutil.virtual_memory()
    return memory.total, memory.available, container_limit(Path("/proc/self/cgroup"), _CGROUPS)


def container_limit(membership: Path, cgroups: Path) -> int | None:
    """The smallest memory limit, in bytes, of the control groups (version 2) that this process is in.

    Args:
        membership: `/proc/self/cgroup`; one line, `0::/group/inner`.
        cgroups: where the groups' folders are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    paths = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    groups = [group for path in paths for group in (PurePosixPath(path), *PurePosixPath(path).parents)]
    limits = []
    for group in groups:
        file = cgroups / str(group).lstrip("/") / "memory.max"
        if file.is_file() and (text := file.read_text().strip()).isdecimal():
            limits.append(int(text))
    return min(limits, default=None)
