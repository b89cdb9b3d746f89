"""Addresses of machines, and machines that work together."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_HOST_AND_PORT = re.compile(r"([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_EVERYWHERE = ("0.0.0.0", "::", "*")
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """A host, by name or number, and a TCP port; port 0 is for listening on any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `HOST:PORT`; a number of IPv6 is in brackets. Raises ValueError."""
        found = _HOST_AND_PORT.fullmatch(text)
        if found is None or int(found[2]) > 65535:
            raise ValueError(f"{text!r}; allowed is HOST:PORT, such as 10.0.0.1:29500")
        host = found[1].strip("[]")
        if host in _EVERYWHERE:
            raise ValueError(f"{text!r}: other machines cannot reach this; name an address of the machine")
        return cls(host, int(found[2]))

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


def reason(error: OSError) -> str:
    """Why an address cannot be used, in the operating system's words, without the address that asyncio and
    socket may add."""
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # Of a name that is not known the number is a negative one.


def own_names() -> frozenset[str]:
    """The names by which this machine knows itself, in small letters."""
    return frozenset({"localhost", socket.gethostname().lower(), socket.getfqdn().lower()})


def is_address(name: str) -> bool:
    """Whether this is an IP address, and no name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


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


class OtherNodes(Protocol):
    """The machines that a runner keeps for trainings, as the process that computes a stage sees them."""

    @property
    def host(self) -> str:
        """The address of this machine at which they reach it."""
        ...

    def invite(self, take_part: Callable[[], str], raise_if_stopped: Callable[[], None]) -> None:
        """Have each of them call `take_part`, which can be pickled, takes part in one training, and returns
        how that ended. Waits until they are free, and calls `raise_if_stopped` meanwhile."""
        ...
