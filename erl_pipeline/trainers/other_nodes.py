"""The machines that take part in a training besides the one that computes its stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class NodesToFind:
    """How many machines a training needs besides the one that computes its stage, and how many of the
    trainer's processes are on each machine."""

    count: int
    processes: int


class OtherNodes(Protocol):
    """The machines that a runner keeps for trainings, as the process that computes a stage sees them."""

    @property
    def host(self) -> str:
        """The address of this machine at which they reach it."""
        ...

    def invite(self, take_part: Callable[[], str], raise_if_stopped: Callable[[], None]) -> None:
        """Have each of them call `take_part`, which can be pickled, takes part in one training, and returns
        how that ended. Waits until they are free, and calls `raise_if_stopped` meanwhile."""
        ...
