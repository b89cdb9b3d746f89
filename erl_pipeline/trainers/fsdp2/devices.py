"""What a machine must have for the processes of a trainer."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from storage.errors import ConfigError


@dataclass(frozen=True)
class Devices:
    """The numbers of GPUs and of CPU cores of a machine that a process may use. `ids` are those that CUDA
    gives the GPUs, in their order; no two GPUs of any machines have the same."""

    gpus: int
    cores: int
    ids: tuple[str, ...] = ()

    def lacking(self, processes: int) -> str:
        """What is wrong with this many processes; empty if each has a GPU or, without GPUs, a core."""
        there, what = (self.gpus, "GPU") if self.gpus else (self.cores, "core")
        if processes <= there:
            return ""
        return f"has {there} {what}{'' if there == 1 else 's'}, and each process needs one of its own"


def devices_here() -> Devices:
    """Those of this machine."""
    # torch takes seconds to import.
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = torch.cuda.device_count()
    ids = tuple(str(torch.cuda.get_device_properties(number).uuid) for number in range(gpus))
    return Devices(gpus, cores, ids)


def require_devices(processes: int, nodes: int = 1) -> None:
    """Raise `ConfigError` where this machine lacks devices for its part of the processes of all nodes."""
    lacking = devices_here().lacking(processes // nodes)
    if lacking:
        raise ConfigError(f"{asked(processes, nodes)}; this machine ({platform.node()}) {lacking}")


def asked(processes: int, nodes: int) -> str:
    """The settings that ask for processes, as error messages name them."""
    here = f", so {processes // nodes} on each" if nodes > 1 else ""
    return f"trainer.processes: {processes}" + (f" on trainer.nodes: {nodes}{here}" if nodes > 1 else "")
