"""Whoever may connect to a port: a browser, a scanner, a program that says nothing."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

_RANDOM = random.Random(7)

SAID: list[bytes] = [
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    # The beginning of TLS: a ClientHello of 512 bytes.
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(505),
    b"\0",
    b"\xff" * 64,
    bytes(64),
    *(_RANDOM.randbytes(_RANDOM.randint(1, 300)) for _ in range(20)),
]
"""What strangers send who know nothing of a protocol."""


@contextmanager
def visited(host: str, port: int, said: Sequence[bytes] = SAID, silent: int = 50) -> Iterator[None]:
    """Inside this context, this many strangers say nothing, and others have said these words."""
    with ExitStack() as stack:
        for _ in range(silent):
            stack.enter_context(socket.create_connection((host, port), timeout=60.0))
        for words in said:
            stranger = stack.enter_context(socket.create_connection((host, port), timeout=60.0))
            with suppress(ConnectionError):  # It may have been sent away in the middle.
                stranger.sendall(words)
        yield
