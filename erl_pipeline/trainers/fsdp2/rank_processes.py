"""The ranks of one machine, as processes: started, told what to do, heard, ended."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from erl_pipeline.engines.vllm.server_log import last_lines
from erl_pipeline.trainers.fsdp2.place import TCP

RANK_MODULE = "erl_pipeline.trainers.fsdp2.rank"
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Share:
    """Which ranks a machine has, from `first` on.

    `rendezvous` is where the ranks find each other: a file that does not exist yet, or `tcp://HOST:PORT` on
    the machine of rank 0. `interface` is the machine's network interface through which they do.
    """

    first: int
    count: int
    processes: int
    threads: int
    rendezvous: str
    interface: str

    @property
    def ranks(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True)
class RankNews:
    """What a rank has said, or that it has ended: the status that `Popen.poll` gives, and its last lines."""

    rank: int
    said: Mapping[str, Any] | None = None
    status: int | None = None
    last_lines: str = ""


class Readable(Protocol):
    """Something to wait for."""

    def fileno(self) -> int: ...


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    answers: IO[bytes]
    log: Path
    unread: bytes = b""
    answers_ended: bool = False
    end_was_told: bool = False

    @property
    def orders(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def said(self) -> Iterator[Mapping[str, Any]]:
        """Its messages since the last call. What comes after the last end of a line is not complete yet."""
        with suppress(BlockingIOError):
            while not self.answers_ended:
                data = os.read(self.answers.fileno(), 65536)
                self.answers_ended = not data
                self.unread += data
        *lines, self.unread = self.unread.split(b"\n")
        yield from map(json.loads, lines)


class RankProcesses:
    """The ranks of a share on this machine.

    They end with this object and with this process, whose pipes they hold. A log of each is in `folder`.

    Args:
        listening: the socket of the rendezvous that rank 0 is given, where it is one of TCP.
    """

    def __init__(self, share: Share, folder: Path, listening: socket.socket | None = None) -> None:
        self.share = share
        self.folder = folder
        self._ranks: list[_Rank] = []
        try:
            for number in share.ranks:
                self._ranks.append(self._start(number, listening if number == 0 else None))
        except BaseException:
            self.end()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks, in their order."""
        return [rank.process.pid for rank in self._ranks]

    @property
    def sources(self) -> list[Readable]:
        """What can be read when there is news, apart from ends."""
        return [rank.answers for rank in self._ranks if not rank.answers_ended]

    def order(self, order: Mapping[str, Any]) -> None:
        """Give all ranks an order."""
        line = json.dumps(order).encode() + b"\n"
        for rank in self._ranks:
            # That a rank has ended is news, and comes with its last lines.
            with suppress(BrokenPipeError):
                rank.orders.write(line)
                rank.orders.flush()

    def news(self) -> Iterator[RankNews]:
        """What is new since the last call; does not wait."""
        for rank in self._ranks:
            # The end of its pipe is not enough: a process that it has started could hold that open. Asked
            # first, so that nothing that it has said before its end is missed.
            status = rank.process.poll()
            for said in rank.said():
                yield RankNews(rank.number, said)
            if status is not None and not rank.end_was_told:
                rank.end_was_told = True
                yield RankNews(rank.number, None, status, last_lines(rank.log))

    def log_of(self, rank: int) -> Path:
        """The file with the output of a rank."""
        return self.folder / f"rank-{rank}.log"

    def end(self) -> None:
        """End all ranks, whatever they do; they have nothing to finish."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
            with suppress(BrokenPipeError):
                rank.orders.close()
            rank.answers.close()
        self._ranks = []

    def _start(self, number: int, listening: socket.socket | None) -> _Rank:
        share, log = self.share, self.log_of(number)
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        given = [] if listening is None else [listening.fileno()]
        with log.open("wb") as output, os.fdopen(writes, "wb") as channel:
            numbers = (number, number - share.first, share.processes, share.threads, channel.fileno())
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", RANK_MODULE, *map(str, numbers)),
                    *(str(given[0]) if given else "none", share.rendezvous),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[channel.fileno(), *given],
                env=_environment(share),
                # Not in this process's group: Ctrl-C is for this process, which ends them.
                process_group=0,
            )
        return _Rank(number, process, os.fdopen(reads, "rb", buffering=0), log)


def wait_for_news(sources: Iterable[Readable], seconds: float = _LOOK_SECONDS) -> set[Readable]:
    """Wait until something can be read, but not longer than this; returns what can be read."""
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ, source)
        return {key.data for key, _ in selector.select(seconds)}


def _environment(share: Share) -> dict[str, str]:
    gloo = {"GLOO_SOCKET_IFNAME": share.interface}
    if share.rendezvous.startswith(TCP):
        # What the user says about interfaces goes before.
        through = {**gloo, "NCCL_SOCKET_IFNAME": f"={share.interface}", **os.environ}
    else:
        through = {**os.environ, **gloo}
    return {
        **through,
        # The ranks find the same modules as this process.
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": str(share.threads),
    }
