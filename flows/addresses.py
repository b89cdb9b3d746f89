"""Addresses of the form HOST:PORT in configurations."""

from __future__ import annotations

import re

_HOST_AND_PORT = re.compile(r"[^/:\s]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


def is_host_and_port(text: str) -> bool:
    """Whether a text is HOST:PORT; the host is a name, an IPv4 address, or an IPv6 address in brackets."""
    return _HOST_AND_PORT.fullmatch(text) is not None


def host_and_port(text: str) -> tuple[str, int]:
    """The host, without brackets, and the port of such a text."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
