"""The socket of the page, and the limits of a connection to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from uvicorn.protocols.http.h11_impl import H11Protocol

from storage.errors import InputError

HEAD_SECONDS = 10.0
"""Most seconds from the first byte of a request, or from the connection, to the end of the request's head."""
MOST_CONNECTIONS = 256
"""With more, the connection that has waited longest for its head is closed."""
_END_OF_HEAD = b"\r\n\r\n"


class LimitedProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, but a client that never sends its whole request cannot stay."""

    _deadline: asyncio.TimerHandle | None = None
    _tail = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = {
                each._deadline.when(): each
                for each in self.connections
                if isinstance(each, LimitedProtocol) and each._deadline is not None
            }
            waiting[min(waiting)].transport.close()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._await_head()
        self._tail += data
        if _END_OF_HEAD in self._tail:
            self._stop_waiting()
        self._tail = self._tail[1 - len(_END_OF_HEAD) :]
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket; port 0 takes a free one.

    Raises InputError, which says what to do, if the server cannot listen on this address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}, port {port}: {error.strerror}. Choose another --port, or 0 for a "
                "free one, or another --host."
            ) from error
        listener.listen(128)
        yield listener
