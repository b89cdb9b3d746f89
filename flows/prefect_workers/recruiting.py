"""Getting a worker: asking Prefect for a flow run, and waiting until it has dialled in and was examined."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from erl_pipeline.engines.interface import Interrupted
from flows.keyed_connection import Line
from flows.local_server import OrchestratorError
from flows.nodes.check import Node, NodeFinding
from flows.nodes.survey import Survey
from flows.prefect_workers.questions import examine
from flows.prefect_workers.reception import Invitation, Reception

_LOOK_SECONDS = 0.2
_STATE_SECONDS = 3.0


class NotCome(Exception):
    """A flow run ended before it dialled in, or did not begin in time."""


@dataclass(frozen=True)
class Asked:
    """A flow run that was asked for."""

    id: UUID
    name: str


class FlowRunStarter(Protocol):
    """Has flow runs started on other machines. All methods raise OrchestratorError."""

    def ask(self, place: int, invitation: Invitation) -> Asked:
        """Ask for the worker of a place."""
        ...

    def state(self, asked: Asked) -> tuple[bool, str]:
        """Whether a flow run has ended, and its state in words."""
        ...

    def cancel(self, asked: Asked) -> None:
        """Have a flow run ended, or never begun."""
        ...


@dataclass(frozen=True)
class Arrival:
    """A worker that has dialled in, and what was found out about its machine."""

    asked: Asked
    line: Line
    finding: NodeFinding[Node]


class Recruiter:
    """Gets workers, in any thread.

    Args:
        seconds: how long a flow run may take until it dials in.
    """

    def __init__(self, starter: FlowRunStarter, reception: Reception, seconds: float) -> None:
        self._starter = starter
        self._reception = reception
        self._seconds = seconds

    def recruit(self, place: int, survey: Survey, given_up: Callable[[], bool]) -> Arrival:
        """Get the worker of a place.

        Args:
            given_up: whether the worker is not wanted any more.

        Raises NotCome, OrchestratorError, and Interrupted when the worker is not wanted any more.
        """
        invitation = self._reception.invite()
        asked = self._starter.ask(place, invitation)
        came = False
        try:
            line = self._await(asked, invitation, given_up)
            came = True
        finally:
            if not came:
                self._reception.cancel(invitation)
                with suppress(OrchestratorError):  # It ends by itself too: nobody expects it any more.
                    self._starter.cancel(asked)
        return Arrival(asked, line, examine(line, survey, Node(invitation.ticket, asked.name)))

    def _await(self, asked: Asked, invitation: Invitation, given_up: Callable[[], bool]) -> Line:
        began = looked = time.monotonic()
        while (line := self._reception.receive(invitation, _LOOK_SECONDS)) is None:
            if given_up():
                raise Interrupted
            now = time.monotonic()
            late = now - began > self._seconds
            if late or now - looked > _STATE_SECONDS:
                looked = now
                ended, state = self._starter.state(asked)
                if ended:
                    raise NotCome(f"flow run {asked.name!r} ended before it dialled in: {state}")
                if late:
                    raise NotCome(
                        f"flow run {asked.name!r} has not dialled in within {self._seconds:g} s: {state}"
                    )
        return line
