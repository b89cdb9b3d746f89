"""The TCP connections of the driver and its workers, and of `serve` and its flow runs: only who knows the key
gets one, and the kernel notices within half a minute when the other machine is lost."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias

from erl_pipeline.network import Address, notice_silence

GREETING_SECONDS = 10
"""How many seconds a handshake may take, in all."""

_SILENCE_SECONDS = 25
_FIRST_BYTES = 1000
_MOST_GREETINGS = 100
_RETRY_SECONDS = 0.1

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


def accept(accepted: socket.socket, key: bytes) -> Line:
    """The connection of who has dialled in. Raises Refused, unless it has the key."""
    with _handshake(accepted) as line:
        _meet(line, key)
    return line


def accept_first_words(accepted: socket.socket, key: bytes) -> tuple[Line, str]:
    """As `accept`, with its first message, which must come in the same time.

    Nothing that a stranger sends is unpickled. Raises Refused.
    """
    with _handshake(accepted) as line:
        _meet(line, key)
        said = line.recv_bytes(_FIRST_BYTES).decode()
    return line, said


def accept_each(listening: socket.socket, greet: Callable[[socket.socket], None]) -> None:
    """Accept connections until the listening socket is shut down. Each is greeted in a thread of its own, so
    that one who says nothing holds up nobody."""
    free = threading.BoundedSemaphore(_MOST_GREETINGS)

    def greet_one(accepted: socket.socket) -> None:
        try:
            greet(accepted)
        finally:
            free.release()

    while True:
        free.acquire()
        try:
            accepted, _ = listening.accept()
        except OSError as error:
            free.release()
            if error.errno in (errno.EINVAL, errno.EBADF):
                return
            time.sleep(_RETRY_SECONDS)  # It went away again, or this process has too many open files.
            continue
        threading.Thread(target=greet_one, args=(accepted,), daemon=True).start()


def _meet(line: Line, key: bytes) -> None:
    deliver_challenge(line, key)
    answer_challenge(line, key)


@contextmanager
def _handshake(connected: socket.socket) -> Iterator[Line]:
    """A connection over a socket, on which everything inside this context must happen in time. It is closed
    and Refused is raised otherwise."""
    line: Line = Connection(connected.dup().detach())
    limit = threading.Timer(GREETING_SECONDS, _shut_down, [connected])
    limit.daemon = True
    try:
        notice_silence(connected, _SILENCE_SECONDS)
        limit.start()
        yield line
    # Python's functions raise AssertionError and ValueError too for what they do not expect.
    except (AuthenticationError, EOFError, OSError, ValueError, AssertionError) as error:
        line.close()
        raise Refused(str(error) or "it closed the connection") from error
    finally:
        limit.cancel()
        connected.close()


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):  # It may have ended just now.
        connected.shutdown(socket.SHUT_RDWR)
