"""The socket of the page."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from storage.errors import InputError


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
