"""Which rank a process is, and where it meets the others."""

from __future__ import annotations

from dataclasses import dataclass

TCP = "tcp://"


@dataclass(frozen=True)
class Place:
    """Which rank this is, of how many, with how many threads each; `local` is its number among those of its
    machine.

    `rendezvous` is where the ranks find each other: a file that does not exist yet, or `tcp://HOST:PORT`. Of
    the latter, rank 0 has the socket with the number `listening`.
    """

    rank: int
    local: int
    processes: int
    threads: int
    rendezvous: str
    listening: int | None
