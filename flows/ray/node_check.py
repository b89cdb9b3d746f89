"""Whether a node is fit for a run: its report is compared with the driver's own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from erl_pipeline.software import software_differences
from flows.ray.node_report import NodeReport

CLOCK_SECONDS = 10.0
"""How many seconds a node's clock may be off: times in manifests and ledgers come from several nodes."""


@dataclass(frozen=True)
class Node:
    """A living node of the cluster, and its total resources."""

    id: str
    address: str
    cpus: float
    gpus: float
    memory_bytes: float

    def __str__(self) -> str:
        return (
            f"{self.address} ({self.cpus:g} CPUs, {self.gpus:g} GPUs, {self.memory_bytes / 1e9:.1f} GB of "
            "memory)"
        )


@dataclass(frozen=True)
class NodeFinding:
    """What was found out about a node. `report` is None if it could not answer.

    `clock_offset`: seconds by which its clock is ahead of the driver's.
    """

    node: Node
    report: NodeReport | None
    clock_offset: float
    problems: tuple[str, ...]


def problems_of(report: NodeReport, here: NodeReport, clock_offset: float, store_uri: str) -> Iterator[str]:
    """The problems of a node; each text also says what to do.

    Args:
        here: the driver's own report.
    """
    yield from software_differences(report, here)
    for package, fingerprint in here.plugins.items():
        found = report.plugins[package]
        if not found:
            yield f"plug-in {package}, which the run uses, is missing: install it there"
        elif found != fingerprint:
            yield f"the code of plug-in {package} differs: install the same version on both"
    if report.store:
        yield (
            f"store {store_uri} {report.store}. Use a folder that every node mounts at the same path, or a "
            "bucket"
        )
    if abs(clock_offset) > CLOCK_SECONDS:
        yield f"its clock is {clock_offset:+.0f} s off: synchronise the clocks by NTP, such as with chrony"
