"""What a machine must have for the processes of a trainer, and what it says about itself before it trains."""

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from erl_pipeline.software import Software, software_differences, software_here
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


@dataclass(frozen=True)
class TrainerNodeQuestion:
    """What a node is asked. `sign`: a file with a secret, in the folder with the orders of the training; who
    cannot read it is not one of its nodes. `folders`: what the ranks read at first."""

    sign: Path
    folders: Sequence[Path]


@dataclass(frozen=True)
class TrainerNodeReport(Software):
    """What a node has. `number`: that of its address. `sign`: what it has read in the file of the question.
    `unseen`: the folders of the question that it does not see."""

    number: str
    devices: Devices
    sign: str
    unseen: Sequence[Path]

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.host} ({self.number})"

    def gpus_of(self, processes: int) -> Sequence[str]:
        """The ids of the GPUs on which this many processes train here."""
        return self.devices.ids[:processes]


QUESTION: TypeAdapter[TrainerNodeQuestion] = TypeAdapter(TrainerNodeQuestion)
REPORT: TypeAdapter[TrainerNodeReport] = TypeAdapter(TrainerNodeReport)


def look(question: TrainerNodeQuestion, number: str) -> TrainerNodeReport:
    """Make a report on this machine."""
    sign = question.sign
    return TrainerNodeReport(
        **vars(software_here()),
        number=number,
        devices=devices_here(),
        sign=sign.read_text(encoding="utf-8") if sign.is_file() else "",
        unseen=[folder for folder in question.folders if not folder.is_dir()],
    )


def problems_of(
    there: TrainerNodeReport, here: TrainerNodeReport, processes: int, nodes: int, taken: Mapping[str, str]
) -> Iterator[str]:
    """Why a node cannot train together with this machine and others; each text also says what to do.

    Args:
        processes: on each node.
        taken: a GPU's id -> who trains on it already.
    """
    yield from software_differences(there, here)
    if bool(there.devices.gpus) != bool(here.devices.gpus):
        yield (
            f"it has {there.devices.gpus} GPUs, this machine {here.devices.gpus}: the nodes of a trainer all "
            "train on GPUs, or all on CPUs"
        )
    elif lacking := there.devices.lacking(processes):
        yield f"{asked(processes * nodes, nodes)}; it {lacking}"
    if others := sorted({taken[gpu] for gpu in there.gpus_of(processes) if gpu in taken}):
        yield (
            f"it would train on the same GPUs as {' and '.join(others)}: start one trainer-node on each "
            "machine, or give each its own GPUs in CUDA_VISIBLE_DEVICES"
        )
    unseen = [*map(str, there.unseen), *(() if there.sign == here.sign else ("the store",))]
    if unseen:
        yield (
            f"it does not see {', '.join(unseen)}: trainer.nodes: {nodes} needs a store in a folder that "
            "every node mounts at the same path; a bucket is not enough"
        )
