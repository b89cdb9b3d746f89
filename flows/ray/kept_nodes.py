"""The nodes that a run keeps for trainings, besides those of its workers: lent to one training at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from erl_pipeline.plan.stage import Listener
from flows.places import Loss
from flows.ray.nodes import ClusterNode
from storage.errors import Interrupted

DEATHS = (RayActorError, ObjectLostError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when a worker's process or node is gone, or cannot be reached."""
_END_SECONDS = 60.0
_LOOK_SECONDS = 0.1


def reason(error: RayError) -> str:
    """The line of Ray's message that gives the reason, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "because" in line] or lines or [type(error).__name__]
    return told[0].partition(". ")[0].rstrip(".")


@dataclass(frozen=True)
class Invitation:
    """Each of the nodes is to call `take_part`, which returns how its part in a training has ended."""

    take_part: Callable[[], str]


class InvitedNodes:
    """`erl_pipeline.network.OtherNodes` on a worker.

    `send` sends an invitation of the stage at work to the driver. `lent` is set when the driver has lent the
    nodes.
    """

    def __init__(self, send: Callable[[Invitation], None]) -> None:
        self.send = send
        self.lent = threading.Event()

    @property
    def host(self) -> str:
        """The address of this node of the cluster."""
        return str(ray.util.get_node_ip_address())

    def invite(self, take_part: Callable[[], str], raise_if_stopped: Callable[[], None]) -> None:
        """Have the driver lend the nodes, and wait until it has."""
        self.lent.clear()
        self.send(Invitation(take_part))
        while not self.lent.wait(_LOOK_SECONDS):
            raise_if_stopped()


class NodeLost(Exception):
    """A node that took part in a training is gone."""


class KeptNodes:
    """An actor on each of the nodes. A lost one is replaced; until then no training begins.

    Args:
        count: how many there are.
        loss: the words for a training that waits because nodes are lost.
        replace: begins to start an actor again at a place.
    """

    def __init__(self, count: int, loss: Loss, replace: Callable[[int], None]) -> None:
        self._count = count
        self._loss = loss
        self._replace = replace
        self._there: dict[int, tuple[Any, ClusterNode]] = {}
        self._lent = False
        self._lock = threading.Lock()

    def enter(self, place: int, actor: Any, node: ClusterNode) -> None:
        """Put an actor at a place."""
        with self._lock:
            self._there[place] = (actor, node)

    @contextmanager
    def loan(self, title: str, listener: Listener) -> Iterator[Loan]:
        """What a stage may borrow inside this context.

        Raises NodeLost in place of the stage's error, where the error comes from a lost node.
        """
        loan = Loan(self, self._loss, title, listener)
        try:
            yield loan
        except Interrupted:
            loan.end()
            raise
        except Exception as error:
            lost = loan.end()
            if lost:
                raise NodeLost(lost) from error
            raise
        else:
            loan.end()

    def take(self) -> Mapping[int, tuple[Any, ClusterNode]] | str:
        """All nodes, if they are free; else why they are not."""
        with self._lock:
            if self._lent:
                return "another stage trains on them"
            if len(self._there) < self._count:
                return self._loss.reason
            self._lent = True
            return dict(self._there)

    def give_back(self, lost: Iterable[int]) -> None:
        """Let the next training have them, without those that are lost."""
        with self._lock:
            gone = [self._there.pop(place) for place in lost]
            self._lent = False
        for actor, _ in gone:
            ray.kill(actor)
        for place in lost:
            self._replace(place)

    def kill(self) -> None:
        """End all of them, whatever they do."""
        for actor, _ in self._there.values():
            ray.kill(actor)


class Loan:
    """What one stage borrows: nothing, or all nodes, from its invitation to its end."""

    def __init__(self, kept: KeptNodes, loss: Loss, title: str, listener: Listener) -> None:
        self._kept = kept
        self._loss = loss
        self._title = title
        self._listener = listener
        self._invitation: Invitation | None = None
        self._since = 0.0
        self._nodes: Mapping[int, tuple[Any, ClusterNode]] = {}
        self._parts: dict[int, Any] = {}

    def ask(self, invitation: Invitation) -> None:
        """The stage has invited the nodes."""
        self._invitation = invitation
        self._since = time.monotonic()

    def look(self) -> bool:
        """Whether the nodes have just been lent; call this again and again.

        Raises NodeLost, and NoWorkerLeft where lost nodes are not replaced for long.
        """
        if self._invitation is None:
            if gone := self._gone(0):
                raise NodeLost(self._said(gone))
            return False
        if not self._nodes:
            found = self._kept.take()
            if isinstance(found, str):
                self._wait(found)
                return False
            self._nodes = found
        part = self._invitation.take_part
        self._parts = {place: actor.take_part.remote(part) for place, (actor, _) in self._nodes.items()}
        self._invitation = None
        return True

    def end(self) -> str:
        """Give the nodes back, once their parts have ended; returns which nodes are lost, empty if none."""
        if not self._nodes:
            return ""
        lost = self._gone(_END_SECONDS)
        for place in self._parts.keys() - lost.keys():
            lost[place] = f"it has not ended its part within {_END_SECONDS:g} s"
        said = self._said(lost)
        self._kept.give_back(list(lost))
        self._nodes = {}
        return said

    def _wait(self, why: str) -> None:
        waited = time.monotonic() - self._since
        self._listener.waiting(self._title, self._loss.awaited, waited, why)
        if why == self._loss.reason:
            self._loss.require_patience(self._title, waited)

    def _gone(self, seconds: float) -> dict[int, str]:
        """Wait for the ends of parts, at most this long; returns the places whose node is gone, and why. A
        node that could not join is only told: the stage then misses it."""
        parts = list(self._parts.values())
        ended = ray.wait(parts, num_returns=len(parts), timeout=seconds)[0] if parts else []
        gone = {}
        for place, part in list(self._parts.items()):
            if part not in ended:
                continue
            try:
                ray.get(part)
            except DEATHS as error:
                gone[place] = reason(error)
                continue
            except RayTaskError as error:
                where = self._nodes[place][1].address
                self._listener.warn(f"{self._title}: node {where} takes no part: {error.cause}")
            del self._parts[place]
        return gone

    def _said(self, gone: Mapping[int, str]) -> str:
        return "; ".join(
            f"node {self._nodes[place][1].address} of its trainer is gone: {why}"
            for place, why in gone.items()
        )
