"""How a stage on a worker gets the nodes that are kept for trainings: the driver lends them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import ray

_LOOK_SECONDS = 0.1


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
