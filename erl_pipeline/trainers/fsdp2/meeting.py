"""How the machine that computes a stage meets the other nodes of its trainer."""

from __future__ import annotations

import errno
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from erl_pipeline.network import Address, interface_of, listen
from erl_pipeline.trainers.fsdp2.line import Line, LineEnded, OtherKey
from erl_pipeline.trainers.fsdp2.node import take_part
from erl_pipeline.trainers.fsdp2.node_report import QUESTION, REPORT, NodeReport, Question, look, problems_of
from erl_pipeline.trainers.fsdp2.rank_processes import wait_for_news
from erl_pipeline.trainers.fsdp2.remote_ranks import RemoteRanks
from erl_pipeline.trainers.interface import TellWaiting
from erl_pipeline.trainers.other_nodes import OtherNodes
from storage.errors import ConfigError

_LOOK_SECONDS = 0.2
_TELL_SECONDS = 1.0
_AWAITED = "the other nodes of the trainer"


@dataclass(frozen=True)
class Meeting:
    """Where and how the nodes of a trainer meet. `key_variable` is where the key is from, for messages.
    `others` are invited to come; None where the user starts them."""

    processes: int
    nodes: int
    address: Address
    key: bytes = field(repr=False)
    key_variable: str
    start_seconds: float
    others: OtherNodes | None = None

    def own_number(self) -> str:
        """The number of the address. Raises ConfigError unless it is one of this machine."""
        try:
            number = self.address.number()
            interface_of(number)
        except OSError as error:
            raise ConfigError(
                f"trainer.address: {self.address}: {error}. The stage is computed on {platform.node()} and "
                "waits there for the other nodes: give an address of this machine"
            ) from error
        return number


@dataclass(frozen=True)
class Met:
    """The other nodes, and this machine's number at which they reach it."""

    number: str
    nodes: Sequence[RemoteRanks]


@dataclass
class _Joined:
    line: Line
    report: NodeReport | None
    clock_offset: float

    @property
    def name(self) -> str:
        return self.line.peer if self.report is None else f"{self.report.host} ({self.line.peer})"


def meet(
    meeting: Meeting,
    scratch: Path,
    folders: Sequence[Path],
    raise_if_stopped: Callable[[], None],
    tell_waiting: TellWaiting,
) -> Met:
    """Wait for the other nodes.

    Args:
        scratch: a folder that the nodes must see, as they must see `folders`, which the ranks read.
        raise_if_stopped: is called while this waits.
        tell_waiting: is called every second while this waits.

    Raises ConfigError where the address is not of this machine, where fewer nodes come than are needed, and
    where one has another key, other software, too few devices or another store.
    """
    number = meeting.own_number()
    deadline = time.monotonic() + meeting.start_seconds
    joined: list[_Joined] = []
    with ExitStack() as undo:
        undo.callback(_close, joined)
        with (
            _sign(scratch, folders) as question,
            _listening(meeting, number, deadline, raise_if_stopped) as server,
        ):
            address = Address(meeting.address.host, server.getsockname()[1])
            if meeting.others is not None:
                meeting.others.invite(partial(take_part, address, meeting.key), raise_if_stopped)
                deadline = time.monotonic() + meeting.start_seconds
            began = told = time.monotonic()
            while len(joined) < meeting.nodes - 1:
                raise_if_stopped()
                if time.monotonic() - told > _TELL_SECONDS:
                    told = time.monotonic()
                    tell_waiting(_AWAITED, told - began, _news(meeting, address, joined))
                ready = wait_for_news([server, *(each.line for each in joined)], _LOOK_SECONDS)
                # A node that has joined has nothing to say before it is told to start: it has ended.
                for each in [each for each in joined if each.line in ready]:
                    each.line.close()
                    joined.remove(each)
                if server in ready:
                    joined.extend(_admitted(server, meeting, question))
                if time.monotonic() > deadline:
                    raise _too_few(meeting, address, joined)
            _require_fit(meeting, joined, look(question))
        undo.pop_all()
    return Met(number, [RemoteRanks(each.line, each.name, each.clock_offset) for each in joined])


def _close(joined: Iterable[_Joined]) -> None:
    for each in joined:
        each.line.close()


@contextmanager
def _sign(scratch: Path, folders: Sequence[Path]) -> Iterator[Question]:
    scratch.mkdir(parents=True, exist_ok=True)
    question = Question(
        (scratch / f".trainer-{secrets.token_hex(8)}").absolute(), secrets.token_hex(16), folders
    )
    question.sign.write_text(question.content, encoding="utf-8")
    try:
        yield question
    finally:
        question.sign.unlink()


@contextmanager
def _listening(
    meeting: Meeting, number: str, deadline: float, raise_if_stopped: Callable[[], None]
) -> Iterator[socket.socket]:
    """Listen on the address. Another stage may listen there until its nodes have come."""
    while True:
        try:
            server = listen(number, meeting.address.port)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise ConfigError(
                    f"trainer.address: this machine cannot listen on {meeting.address} ({error}); choose "
                    "another port, also for `erl-pipeline trainer-node`"
                ) from error
        raise_if_stopped()
        time.sleep(_LOOK_SECONDS)
    server.settimeout(_LOOK_SECONDS)
    with server:
        yield server


def _admitted(server: socket.socket, meeting: Meeting, question: Question) -> Iterator[_Joined]:
    """Who has connected, unless it is no node. Raises ConfigError where it has another key."""
    try:
        line = Line(server.accept()[0])
    except OSError:  # it has gone again
        return
    try:
        line.greet(meeting.key)
        line.send({"question": QUESTION.dump_python(question, mode="json")})
        words, _ = line.receive()
    except OtherKey as error:
        line.close()
        if meeting.others is not None:  # Nobody has told it the key: it is for another run.
            return
        raise ConfigError(
            f"node {line.peer} was refused, since it has another key: trainer.key_variable: the variable "
            f"{meeting.key_variable} must hold the same here and where its trainer-node was started"
        ) from error
    except LineEnded:
        line.close()
        return
    try:
        report = REPORT.validate_python(words)
        yield _Joined(line, report, report.clock - time.time())
    except ValidationError:
        yield _Joined(line, None, 0.0)


def _news(meeting: Meeting, address: Address, joined: Sequence[_Joined]) -> str:
    came = f": {', '.join(each.name for each in joined)}" if joined else ""
    return f"{len(joined)} of {meeting.nodes - 1} have come to {address}{came}"


def _too_few(meeting: Meeting, address: Address, joined: Sequence[_Joined]) -> ConfigError:
    came = ", ".join(each.name for each in joined) or "none"
    advice = (
        f"Start `erl-pipeline trainer-node {address}` on each of the others; it says there what it lacks"
        if meeting.others is None
        else f"All nodes must reach {address} and each other on all ports"
    )
    return ConfigError(
        f"trainer.nodes: {meeting.nodes}; {len(joined)} of {meeting.nodes - 1} other nodes came within "
        f"trainer.start_seconds ({meeting.start_seconds:g}): {came}. {advice}"
    )


def _require_fit(meeting: Meeting, joined: Sequence[_Joined], here: NodeReport) -> None:
    """Raise ConfigError, which lists all problems, unless every node is fit; the nodes are told theirs."""
    wrong = []
    each_has = meeting.processes // meeting.nodes
    taken = dict.fromkeys(here.gpus_of(each_has), "the machine that computes the stage")
    for each in joined:
        if each.report is None:
            problems = ["it has another version of erl-pipeline: install the same on both"]
        else:
            problems = list(problems_of(each.report, here, meeting.processes, meeting.nodes, taken))
            taken.update(dict.fromkeys(each.report.gpus_of(each_has), f"node {each.name}"))
        wrong += [f"node {each.name}: {problem}" for problem in problems]
        if problems:
            with suppress(LineEnded):
                each.line.send({"refused": problems})
    if wrong:
        raise ConfigError("\n  ".join(["trainer.nodes: these nodes cannot train together:", *wrong]))
