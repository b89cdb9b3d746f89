"""Where the workers of a run dial in: the driver's listening socket."""

from __future__ import annotations

import secrets
import socket
import threading
from dataclasses import dataclass
from types import TracebackType

from erl_pipeline.network import Address, listen
from flows.keyed_connection import Line, Refused, accept_each, accept_first_words
from storage.errors import ConfigError


@dataclass(frozen=True)
class Invitation:
    """What a worker needs in order to dial in: address and key (hexadecimal) of the driver, and a ticket that
    says which worker it is."""

    address: str
    key: str
    ticket: str


class Reception:
    """Listens at an address, and keeps each connection for whoever waits for its ticket.

    Args:
        address: HOST:PORT; port 0 takes a free port.

    Raises ConfigError when this machine cannot listen there.
    """

    def __init__(self, address: str) -> None:
        own = Address.parse(address)
        try:
            self._listening = listen(own.number(), own.port)
        except OSError as error:
            raise ConfigError(
                f"runner.address: {address}: this machine cannot listen there ({error}). Give an address of "
                "this machine that the workers' machines reach, and a port that is free"
            ) from error
        self._key = secrets.token_bytes(32)
        self._address = str(Address(own.host, self._listening.getsockname()[1]))
        self._expected: set[str] = set()
        self._came: dict[str, Line] = {}
        self._changed = threading.Condition()
        self._accepting = threading.Thread(
            target=accept_each, args=(self._listening, self._greet), name="reception", daemon=True
        )

    def __enter__(self) -> Reception:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._accepting.join()
        self._listening.close()
        with self._changed:
            for line in self._came.values():
                line.close()

    def invite(self) -> Invitation:
        """Expect one more worker."""
        invitation = Invitation(self._address, self._key.hex(), secrets.token_hex(8))
        with self._changed:
            self._expected.add(invitation.ticket)
        return invitation

    def receive(self, invitation: Invitation, seconds: float) -> Line | None:
        """The connection of the invited worker; None if it does not dial in within this time."""
        with self._changed:
            self._changed.wait_for(lambda: invitation.ticket in self._came, seconds)
            return self._came.pop(invitation.ticket, None)

    def cancel(self, invitation: Invitation) -> None:
        """Expect this worker no more."""
        with self._changed:
            self._expected.discard(invitation.ticket)
            line = self._came.pop(invitation.ticket, None)
        if line is not None:
            line.close()

    def _greet(self, accepted: socket.socket) -> None:
        try:
            line, ticket = accept_first_words(accepted, self._key)
        except Refused:
            return
        with self._changed:
            if ticket in self._expected:
                self._expected.remove(ticket)
                self._came[ticket] = line
                self._changed.notify_all()
                return
        line.close()
