"""What a machine must have for the processes of a trainer."""

from __future__ import annotations

import os
import platform

from storage.errors import ConfigError


def require_devices(processes: int) -> None:
    """Raise `ConfigError` where this machine lacks a GPU for each process or, without GPUs, a core for
    each."""
    # torch takes seconds to import.
    import torch

    gpus = torch.cuda.device_count()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    there, what = (gpus, "GPU") if gpus else (cores, "core")
    if processes > there:
        raise ConfigError(
            f"trainer.processes: {processes}; this machine ({platform.node()}) has {there} {what}"
            f"{'' if there == 1 else 's'}, and each process needs one of its own"
        )
