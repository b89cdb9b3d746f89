"""A TCP proxy on loopback whose connections are cut: at some instant, or within a request or an answer."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

Direction = Literal["request", "answer"]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PIECE = 65536


class BreakingProxy:
    """Connects each client to a server's port on loopback, and breaks all connections when it is told to.

    A broken connection ends with a reset at both ends, as when a router in between is restarted.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._left: dict[Direction, int] = {}
        self.broken: list[str] = []
        """What each cut interrupted: `at rest` or `within a request`, `within an answer`."""
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self) -> None:
        """Cut all connections now; does nothing if there are none."""
        self._cut("at rest")

    def cut_within(self, direction: Direction, byte_count: int) -> None:
        """Cut all connections once so many more bytes have gone in this direction, on any of them."""
        with self._lock:
            self._left[direction] = byte_count

    def close(self) -> None:
        """End the proxy and its connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self._reset()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(("127.0.0.1", self._server_port))
            with self._lock:
                self._open.append((client, upstream))
            for source, target, direction in ((client, upstream, "request"), (upstream, client, "answer")):
                threading.Thread(target=self._pump, args=(source, target, direction), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, direction: Direction) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                allowed = self._allowed(direction, len(piece))
                target.sendall(piece[:allowed])
                if allowed < len(piece):
                    self._cut(f"within {'a request' if direction == 'request' else 'an answer'}")
            target.shutdown(socket.SHUT_WR)

    def _allowed(self, direction: Direction, size: int) -> int:
        """How many of the next bytes may go on."""
        with self._lock:
            if direction not in self._left:
                return size
            left = self._left[direction]
            if left < size:
                del self._left[direction]
                return left
            self._left[direction] -= size
            return size

    def _cut(self, place: str) -> None:
        if self._reset():
            self.broken.append(place)

    def _reset(self) -> int:
        """Reset all connections, and return how many were still open."""
        with self._lock:
            pairs, self._open = self._open, []
        cut = 0
        for pair in pairs:
            was_open = _is_open(pair[0])
            for end in pair:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                    end.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
                end.close()
            cut += was_open
        return cut


def _is_open(end: socket.socket) -> bool:
    try:
        end.getpeername()
    except OSError:
        return False
    return True


@contextmanager
def breaking_proxy(server_port: int) -> Iterator[BreakingProxy]:
    """A proxy to a server's port; it is ended afterwards."""
    proxy = BreakingProxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()
