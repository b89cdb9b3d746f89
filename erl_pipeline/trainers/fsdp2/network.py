"""Addresses of machines, and connections that notice when the other machine is gone."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 4, 2, 3
_UNANSWERED_MILLISECONDS = 10_000
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """A host, by name or number, and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`; a number of IPv6 is in brackets. Raises ValueError."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
            raise ValueError(f"{text!r}; allowed is HOST:PORT, such as 10.0.0.1:29500")
        if host in ("0.0.0.0", "::", "*"):
            raise ValueError(f"{text!r}: other nodes cannot reach this; name an address of the machine")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def number(self) -> str:
        """The host's number. Raises OSError where its name is not known."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return str(found[0][4][0])


def listen(number: str, port: int) -> socket.socket:
    """Listen on an address of this machine; port 0: any free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in number else socket.AF_INET
    return socket.create_server((number, port), family=family)


def interface_of(number: str) -> str:
    """The name of this machine's network interface with an address, such as `eth0`.

    Raises OSError where it has none.
    """
    # psutil is needed only here, by processes that train.
    import psutil

    if ipaddress.ip_address(number).is_loopback:
        number = _LOOPBACK
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == number for each in addresses):
            return str(name)
    raise OSError(f"this machine has no network interface with the address {number}")


def notice_silence(connection: socket.socket) -> None:
    """Let operations on a connection fail about ten seconds after the other machine, or the network, has
    gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Not all systems have each of them.
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", _UNANSWERED_MILLISECONDS),
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
