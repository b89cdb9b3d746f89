"""The processes of a trainer: started together, watched together, ended together."""

import errno
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from erl_pipeline.network import Address, interface_of, listen
from erl_pipeline.trainers.fsdp2 import work as orders
from erl_pipeline.trainers.fsdp2.launcher import (
    TIMEOUT_SECONDS,
    Launch,
    LaunchedRanks,
    connect,
    last_lines,
)
from erl_pipeline.trainers.fsdp2.nodes import NODE_END, SILENCE_SECONDS, NodeEnd, NodesConfig, gather
from erl_pipeline.trainers.interface import OnStep
from erl_pipeline.trainers.sequences import TrainingSequence
from storage import errors
from storage.artifacts.late_files import WatchedFiles
from storage.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not declared so

_LOOK_SECONDS = 0.02
_LISTEN_SECONDS = 0.2
_CONNECT_SECONDS = 120.0
_LAST_WORDS_SECONDS = 3.0
"""How long to listen after a rank has failed: the one that failed first may be heard after those that failed
since they no longer heard from it."""
_LOST_CONNECTION_SECONDS = 30.0
"""How long to listen while all ranks that were heard have failed in an exchange. The cause is then another
rank, and a busy machine is slow to say that it was killed."""
_SILENT_SECONDS = 2.4
"""A node that has not been heard for so long when a rank fails is the cause."""
_OUT_OF_MEMORY = "; the kernel ends a process in this way when memory runs out"
_LOGS = "logs"


@dataclass
class _OtherNode:
    """Another node, as this machine has heard of it."""

    name: str
    beats: int = 0
    heard: float = 0.0
    end: NodeEnd | None = None


class RankGroup:
    """Ranks on this machine, and on other nodes.

    They end with this object, with each other, and with this process: a rank that outlived the others would
    wait for them until the timeout of NCCL or gloo.

    Args:
        threads: number of threads of each rank.
        scratch: where a folder for files and logs is made, which all nodes see; logs are kept where a rank
            failed.
        nodes: where the other nodes come; each gets as many of the ranks. None: all ranks are here.
        timeout_seconds: how long a rank waits for the others in one exchange.
        deterministic: whether GPUs are to give equal bytes.
        sleeps: whether it leaves its GPUs to others for a while, where it would else end.
    """

    def __init__(
        self,
        processes: int,
        threads: int,
        scratch: Path,
        nodes: NodesConfig | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        deterministic: bool = False,
        sleeps: bool = False,
    ) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="fsdp2-", dir=scratch)).absolute()
        self._logs = self.folder / _LOGS
        self._logs.mkdir()
        self._processes = processes
        self._failed = False
        self._orders = 0
        self._late_files = WatchedFiles()
        self.sleeps = sleeps
        self._asleep = False
        self._heard: Counter[int] = Counter()
        self._nodes: Sequence[_OtherNode] = ()
        self._here: LaunchedRanks | None = None
        self._store: TCPStore | None = None
        self.process_ids: dict[int, int] = {}
        """Process ids of the ranks that have begun, on whichever machine."""
        try:
            self._start(threads, nodes, timeout_seconds, deterministic)
        except BaseException:
            self.end()
            raise

    def do(
        self,
        work: orders.Work,
        sequences: Sequence[TrainingSequence] | None = None,
        on_step: OnStep | None = None,
    ) -> Path:
        """Have all ranks do some work and wait for them; returns the file with the answer.

        The file is there until the next call. Raises the `PipelineError` that a rank raised, a plain one
        where a rank fails otherwise or ends, and what `on_step` raises. The group has then ended, after what
        it wrote beside its work.
        """
        if self._store is None:
            raise RuntimeError("the ranks have ended")
        for path in (orders.order_file, orders.answer_file):
            path(self.folder, self._orders).unlink(missing_ok=True)
        self._orders += 1
        self._asleep = isinstance(work, orders.Sleep)
        self._late_files.forget_written()
        given = orders.sequences_file(self.folder, self._orders)
        if sequences is not None:
            orders.write_sequences(given, sequences)
        orders.order_file(self.folder, self._orders).write_bytes(orders.WORK.dump_json(work))
        try:
            try:
                self._store.set(f"order/{self._orders}", "")
            except RuntimeError:
                self._fail({})
            self._await_all(on_step)
        except BaseException:
            # What ranks still write may be the state of an earlier training, which later stages have read.
            self.finish()
            raise
        given.unlink(missing_ok=True)
        answer = orders.answer_file(self.folder, self._orders)
        if isinstance(work, orders.BeginState):
            self._late_files.watch(work.folder / name for name in orders.read_sizes(answer))
        return answer

    def alive(self) -> bool:
        """Whether all ranks wait for work, and all nodes are heard."""
        told = [said for _, said in self._news()]
        return (
            self._here is not None
            and not self._here.ended()
            and not any("failed" in said for said in told)
            and not any(node.end or _silent(node) for node in self._nodes)
        )

    def finish(self) -> None:
        """End all ranks when they have written what they have begun to write."""
        try:
            self._late_files.wait()
        finally:
            self.end()

    def make_room(self) -> None:
        """Release the memory of the GPUs. Raises as `do` where ranks cannot sleep."""
        if not self.sleeps or not self.alive():
            self.finish()
        elif not self._asleep:
            self.do(orders.Sleep())

    def end(self) -> None:
        """End all ranks, whatever they do."""
        self._store = None
        if self._here is not None:
            self._here.end()
            self._here = None
        if not self._failed:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for path in self.folder.iterdir():
            if path != self._logs:
                path.unlink()

    def _start(
        self, threads: int, nodes: NodesConfig | None, timeout_seconds: float, deterministic: bool
    ) -> None:
        count = 1 if nodes is None else nodes.count
        number = "127.0.0.1" if nodes is None else nodes.own_number()
        # Nobody else has to reach the ranks of one machine.
        loopback = "lo" if sys.platform == "linux" else "lo0"
        # The launcher is given the socket, so that no other program can take its port meanwhile.
        with _listening(number, nodes) as listening:
            address = Address(number, listening.getsockname()[1])
            launch = Launch(
                address=address,
                node=0,
                nodes=count,
                processes=self._processes // count,
                threads=threads,
                orders=self.folder,
                interface=loopback if nodes is None else interface_of(number),
                timeout_seconds=timeout_seconds,
                deterministic=deterministic,
            )
            self._here = LaunchedRanks(launch, self._logs, listening)
        try:
            self._store = connect(address, _CONNECT_SECONDS)
        except OSError as error:
            if self._here.ended():
                self._fail({})
            raise PipelineError(
                "the launcher of the trainer's processes (trainer: fsdp2) has not answered within "
                f"{_CONNECT_SECONDS:g} s; is this machine too busy, or its memory full? Nothing was written"
            ) from error
        if nodes is not None:
            names = gather(self._store, nodes, launch)
            self._nodes = [_OtherNode(name, heard=time.monotonic()) for name in names]

    def _await_all(self, on_step: OnStep | None) -> None:
        """Wait until each rank is done. Raises as `do`."""
        assert self._here is not None
        waiting = set(range(self._processes))
        while True:
            for rank, said in self._news():
                if "failed" in said:
                    self._fail({rank: said})
                elif "step" in said:
                    if on_step is not None:
                        on_step(said["step"], said["loss"])
                elif "done" in said:
                    waiting.discard(rank)
            if not waiting:
                return
            if self._here.ended() or any(node.end or _silent(node) for node in self._nodes):
                self._fail({})
            time.sleep(_LOOK_SECONDS)

    def _news(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """What ranks have said since the last call; also looks at the other nodes. Does not wait."""
        store = self._store
        if store is None or self._here is None or self._here.ended():
            return  # torch reports a store that is gone with a long trace on standard error
        try:
            for rank in range(self._processes):
                while store.check([key := f"rank/{rank}/{self._heard[rank]}"]):
                    said = json.loads(store.get(key))
                    store.delete_key(key)
                    self._heard[rank] += 1
                    if "process" in said:
                        self.process_ids[rank] = said["process"]
                    yield rank, said
            for number, node in enumerate(self._nodes, 1):
                if node.end is None and store.check([f"end/{number}"]):
                    node.end = NODE_END.validate_json(store.get(f"end/{number}"))
                if (beats := store.add(f"beats/{number}", 0)) != node.beats:
                    node.beats, node.heard = beats, time.monotonic()
        except RuntimeError:
            return  # it is gone with the launcher, which has just ended since a rank has

    def _fail(self, told: dict[int, Mapping[str, Any]]) -> NoReturn:
        """Raise for the rank that failed first: the others fail because they no longer hear from it. `told`:
        rank -> its message that it has failed."""
        assert self._here is not None
        self._failed = True
        began = time.monotonic()
        while not self._here.ended() and len(told) < self._processes:
            lost_others = told and all(said["in_exchange"] for said in told.values())
            if time.monotonic() - began > (_LOST_CONNECTION_SECONDS if lost_others else _LAST_WORDS_SECONDS):
                break
            told.update({rank: said for rank, said in self._news() if "failed" in said})
            if any(node.end or _silent(node) for node in self._nodes):
                break
            time.sleep(_LOOK_SECONDS)
        told.update({rank: said for rank, said in self._news() if "failed" in said})
        for number, node in enumerate(self._nodes, 1):
            if node.end is not None and node.end.gone:
                self._lose(number, node.end.gone)
        ends = [(self._here.failure(), None), *((each.end, each.name) for each in self._nodes)]
        # A rank that was killed could send no message.
        for end, name in ends:
            if end is not None and end.rank is not None and end.rank not in told:
                lines = end.lines if isinstance(end, NodeEnd) else last_lines(self._here.log_of(end.rank))
                self._raise_for(end.rank, name, _end_of(end.status), lines)
        for number, node in enumerate(self._nodes, 1):
            if _silent(node, _SILENT_SECONDS):
                silent = time.monotonic() - node.heard
                self._lose(number, f"it has not been heard for {silent:.0f} s")
        if not told:
            log = self._logs / "launcher.log"
            raise PipelineError(
                "the launcher of the trainer's processes (trainer: fsdp2) has ended; nothing was written. "
                f"Its last lines, of {log}:\n{last_lines(log)}"
            )
        first = min(told, key=lambda rank: told[rank]["place"])
        said, name = told[first], self._name_of(first)
        if said["kind"]:
            self._failed = False
            kind = getattr(errors, said["kind"], PipelineError)
            where = f" (of rank {first} of {self._processes} on node {name})" if name else ""
            raise kind(said["failed"] + where)
        self._raise_for(first, name, f"failed ({said['failed'] or 'no message'})", said["lines"])

    def _raise_for(self, rank: int, node: str | None, how: str, lines: str) -> NoReturn:
        assert self._here is not None
        where = "" if node is None else f" on node {node}"
        log = f", of {self._here.log_of(rank)}" if node is None else ""
        raise PipelineError(
            f"rank {rank} of {self._processes}{where} of the trainer (trainer: fsdp2) {how}; the other ranks "
            f"were ended, and nothing was written. Its last lines{log}:\n{lines}"
        )

    def _lose(self, number: int, why: str) -> NoReturn:
        each = self._processes // (1 + len(self._nodes))
        first, last = number * each, (number + 1) * each - 1
        which = f"rank {first}" if first == last else f"ranks {first} to {last}"
        raise PipelineError(
            f"node {self._nodes[number - 1].name}, which has {which} of the trainer (trainer: fsdp2), is "
            f"lost ({why}); the other ranks were ended, and nothing was written. Where `erl-pipeline "
            "trainer-node` has ended there, start it again; then run the same command"
        )

    def _name_of(self, rank: int) -> str | None:
        """The node of a rank; None for this machine."""
        place = rank // (self._processes // (1 + len(self._nodes)))
        return self._nodes[place - 1].name if place else None


def _listening(number: str, nodes: NodesConfig | None) -> socket.socket:
    """Listen on the address. Another training may still be there. Raises ConfigError where it stays."""
    port, until = (0, 0.0) if nodes is None else (nodes.address.port, time.monotonic() + nodes.start_seconds)
    while True:
        try:
            return listen(number, port)
        except OSError as error:
            if nodes is None or error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise ConfigError(
                    f"trainer.address: this machine cannot listen on {number}:{port} ({error}); choose "
                    "another port, also for `erl-pipeline trainer-node`"
                ) from error
        nodes.raise_if_stopped()
        time.sleep(_LISTEN_SECONDS)


def _silent(node: _OtherNode, seconds: float = SILENCE_SECONDS) -> bool:
    return time.monotonic() - node.heard > seconds


def _end_of(status: int | None) -> str:
    if status is None or status >= 0:
        return f"ended with status {status}"
    hint = _OUT_OF_MEMORY if status == -signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-status).name}{hint}"
