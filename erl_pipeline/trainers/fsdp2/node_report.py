"""What a node says about itself before it trains, and whether it is fit for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from erl_pipeline.software import Software, software_differences, software_here
from erl_pipeline.trainers.fsdp2.devices import Devices, asked, devices_here


@dataclass(frozen=True)
class Question:
    """What a node is asked. `sign`: a file that the stage's machine has written into the store, with this
    `content`. `folders`: what the ranks read at first."""

    sign: Path
    content: str
    folders: Sequence[Path]


@dataclass(frozen=True)
class NodeReport(Software):
    """What a node has. `unseen`: the files and folders of the question that it does not see as the stage's
    machine does. `clock`: seconds since the epoch."""

    devices: Devices
    unseen: Sequence[Path]
    clock: float

    def gpus_of(self, processes: int) -> Sequence[str]:
        """The ids of the GPUs on which this many processes train here."""
        return self.devices.ids[:processes]


QUESTION: TypeAdapter[Question] = TypeAdapter(Question)
REPORT: TypeAdapter[NodeReport] = TypeAdapter(NodeReport)


def look(question: Question) -> NodeReport:
    """Make a report on this machine."""
    unseen = [folder for folder in question.folders if not folder.is_dir()]
    sign = question.sign
    if not sign.is_file() or sign.read_text(encoding="utf-8") != question.content:
        unseen.append(sign.parent)
    return NodeReport(**vars(software_here()), devices=devices_here(), unseen=unseen, clock=time.time())


def problems_of(
    there: NodeReport, here: NodeReport, processes: int, nodes: int, taken: Mapping[str, str]
) -> Iterator[str]:
    """Why a node cannot train together with this machine and others; each text also says what to do.

    Args:
        taken: a GPU's id -> who trains on it already.
    """
    yield from software_differences(there, here)
    if bool(there.devices.gpus) != bool(here.devices.gpus):
        yield (
            f"it has {there.devices.gpus} GPUs, this machine {here.devices.gpus}: the nodes of a trainer all "
            "train on GPUs, or all on CPUs"
        )
    elif lacking := there.devices.lacking(processes // nodes):
        yield f"{asked(processes, nodes)}; it {lacking}"
    if others := sorted({taken[gpu] for gpu in there.gpus_of(processes // nodes) if gpu in taken}):
        yield (
            f"it would train on the same GPUs as {' and '.join(others)}: start one trainer-node on each "
            "machine, or give each its own GPUs in CUDA_VISIBLE_DEVICES"
        )
    if there.unseen:
        yield (
            f"it does not see {', '.join(map(str, there.unseen))}: trainer.nodes: {nodes} needs a store in a "
            "folder that every node mounts at the same path; a bucket is not enough"
        )
