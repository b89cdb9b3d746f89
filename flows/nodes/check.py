"""Whether a node is fit for a run: its report is compared with the driver's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from erl_pipeline.software import software_differences
from flows.nodes.report import NodeReport
from storage.errors import ConfigError

CLOCK_SECONDS = 10.0
"""How many seconds a node's clock may be off: times in manifests and ledgers come from several nodes."""


@dataclass(frozen=True)
class Node:
    """A machine that is to compute stages. `address` is how messages name it."""

    id: str
    address: str


NodeT = TypeVar("NodeT", bound=Node)


@dataclass(frozen=True)
class NodeFinding(Generic[NodeT]):
    """What was found out about a node. `report` is None if it could not answer.

    `clock_offset`: seconds by which its clock is ahead of the driver's.
    """

    node: NodeT
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


def require_fit(findings: Iterable[NodeFinding[NodeT]], heading: str) -> None:
    """Raise ConfigError, which lists all problems below the heading, unless every node is fit."""
    wrong = [f"node {each.node.address}: {problem}" for each in findings for problem in each.problems]
    if wrong:
        raise ConfigError("\n  ".join([heading, *dict.fromkeys(wrong)]))


def differences(findings: Iterable[NodeFinding[NodeT]]) -> list[str]:
    """Warnings about differences between nodes that are no reason to refuse them."""
    processors = {each.report.processor for each in findings if each.report is not None}
    if len(processors) < 2:
        return []
    return [
        f"the nodes have different processors ({', '.join(sorted(processors))}): artifacts are reproduced to "
        "the byte only on the same kind"
    ]
