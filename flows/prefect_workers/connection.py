"""The TCP connection between the driver and a worker: only who knows the run's key gets one, and the kernel
notices within half a minute when the other machine is lost."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias

from erl_pipeline.network import Address, notice_silence

GREETING_SECONDS = 10
"""How many seconds a handshake may take."""

_SILENCE_SECONDS = 25
_FIRST_BYTES = 1000

Line: TypeAlias = "Connection[Any, Any]"


class Refused(Exception):
    """The other end does not know the key, is something else, or said nothing in time."""


def dial(address: str, key: bytes) -> Line:
    """A connection from a worker to the driver at HOST:PORT.

    Raises OSError when nothing answers there, and Refused when it is not the driver of this key.
    """
    driver = Address.parse(address)
    dialled = socket.create_connection((driver.host, driver.port), timeout=GREETING_SECONDS)
    dialled.settimeout(None)
    with _handshake(dialled) as line:
        answer_challenge(line, key)
        deliver_challenge(line, key)
    return line


def accept(accepted: socket.socket, key: bytes) -> tuple[Line, str]:
    """The connection of a worker that dialled in, and its first message.

    Nothing that a stranger sends is unpickled. Raises Refused.
    """
    with _handshake(accepted) as line:
        deliver_challenge(line, key)
        answer_challenge(line, key)
        said = line.recv_bytes(_FIRST_BYTES).decode()
    return line, said


@contextmanager
def _handshake(connected: socket.socket) -> Iterator[Line]:
    """A connection over a socket, on which everything inside this context must happen in time. It is closed
    and Refused is raised otherwise."""
    notice_silence(connected, _SILENCE_SECONDS)
    _wait_at_most(connected, GREETING_SECONDS)
    line: Line = Connection(connected.dup().detach())
    try:
        yield line
    except (AuthenticationError, EOFError, OSError, UnicodeDecodeError) as error:
        line.close()
        raise Refused(str(error) or "it closed the connection") from error
    else:
        _wait_at_most(connected, 0)
    finally:
        connected.close()


def _wait_at_most(connected: socket.socket, seconds: int) -> None:
    """Limit how long one read waits; 0 for no limit."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
