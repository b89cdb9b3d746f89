"""A TCP proxy on loopback, whose connections a test cuts: now, or within the next request or answer."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from typing import Literal

Direction = Literal["request", "answer"]

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_PIECE = 65536


class Proxy:
    """A port that leads to a server's port while it is open; lives in one event loop.

    A connection that is cut ends with a reset at both ends, as when a machine or a router fails.
    """

    def __init__(self, server_port: int) -> None:
        self.port = 0
        """The same each time it is opened; 0 before."""
        self.cuts: list[str] = []
        """What each cut interrupted: `at rest`, `within a request` or `within an answer`."""
        self._server_port = server_port
        self._listener: asyncio.Server | None = None
        self._connections: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._left: dict[Direction, int] = {}

    async def open(self) -> None:
        """Accept connections."""
        self._listener = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Refuse connections, and cut those that there are."""
        assert self._listener is not None
        self._listener.close()
        self._reset()

    def cut(self) -> None:
        """Cut all connections; does nothing if there are none."""
        self._cut("at rest")

    def cut_within(self, direction: Direction, byte_count: int) -> None:
        """Cut all connections once so many more bytes have gone in this direction, on any of them."""
        self._left[direction] = byte_count

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        connection = writer, far_writer
        self._connections.add(connection)
        await asyncio.gather(
            self._copy(reader, far_writer, "request"), self._copy(far_reader, writer, "answer")
        )
        self._connections.discard(connection)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(_PIECE):
                allowed = self._allowed(direction, len(data))
                writer.write(data[:allowed])
                await writer.drain()
                if allowed < len(data):
                    self._cut("within a request" if direction == "request" else "within an answer")
        writer.close()

    def _allowed(self, direction: Direction, size: int) -> int:
        """How many of the next bytes may go on."""
        left = self._left.get(direction, size)
        if left < size:
            del self._left[direction]
        elif direction in self._left:
            self._left[direction] -= size
        return min(left, size)

    def _cut(self, place: str) -> None:
        if self._connections:
            self.cuts.append(place)
            self._reset()

    def _reset(self) -> None:
        for connection in self._connections:
            # An end that is closing may have no socket any more.
            for writer in (each for each in connection if not each.is_closing()):
                end: socket.socket = writer.get_extra_info("socket")
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
        self._connections = set()
