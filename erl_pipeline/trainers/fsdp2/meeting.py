"""How the machine that computes a stage meets the other nodes of its trainer."""

from __future__ import annotations

import errno
import platform
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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
_LOOK_SECONDS_OF_GREETINGS = 0.02
_TELL_SECONDS = 1.0
_MOST_GREETINGS = 100
"""More who connect at the same time wait until a greeting has ended."""
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

    Who does not show that it has the key is no node, whatever it sends, and holds up nobody.

    Raises ConfigError where the address is not of this machine, where fewer nodes come than are needed, and
    where one has other software, too few devices or another store.
    """
    number = meeting.own_number()
    deadline = time.monotonic() + meeting.start_seconds
    joined: list[_Joined] = []
    with ExitStack() as undo:
        undo.callback(_close, joined)
        with (
            _sign(scratch, folders) as question,
            _listening(meeting, number, deadline, raise_if_stopped) as server,
            closing(_Greetings(meeting.key, question)) as greetings,
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
                    tell_waiting(_AWAITED, told - began, _news(meeting, address, joined, greetings))
                open_to_more = [server] if greetings.at_work < _MOST_GREETINGS else []
                seconds = _LOOK_SECONDS_OF_GREETINGS if greetings.at_work else _LOOK_SECONDS
                ready = wait_for_news([*open_to_more, *(each.line for each in joined)], seconds)
                # A node that has joined has nothing to say before it is told to start: it has ended.
                for each in [each for each in joined if each.line in ready]:
                    each.line.close()
                    joined.remove(each)
                if server in ready:
                    greetings.begin(server)
                joined += greetings.came(meeting.nodes - 1 - len(joined))
                if time.monotonic() > deadline:
                    raise _too_few(meeting, address, joined, greetings)
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


class _Greetings:
    """Greets who connects, each in a thread of its own, and keeps those that are nodes.

    `others` counts who showed another key, by its machine's number.
    """

    def __init__(self, key: bytes, question: Question) -> None:
        self._key = key
        self._question = question
        self._lock = threading.Lock()
        self._came: list[_Joined] = []
        self._closed = False
        self.at_work = 0
        self.others: Counter[str] = Counter()

    def begin(self, server: socket.socket) -> None:
        """Begin to greet who has connected."""
        try:
            line = Line(server.accept()[0])
        except OSError:  # it has gone again
            return
        with self._lock:
            self.at_work += 1
        threading.Thread(target=self._greet, args=(line,), daemon=True).start()

    def came(self, most: int) -> list[_Joined]:
        """Nodes that have come since the last call."""
        with self._lock:
            found, self._came = self._came[:most], self._came[most:]
        return found

    def close(self) -> None:
        """Let go of those that have come, or still come."""
        with self._lock:
            self._closed = True
            _close(self._came)

    def in_words(self) -> str:
        """Who showed another key."""
        return ", ".join(f"{times} from {number}" for number, times in sorted(self.others.items()))

    def _greet(self, line: Line) -> None:
        joined: _Joined | None = None
        try:
            line.greet(self._key)
            line.send({"question": QUESTION.dump_python(self._question, mode="json")})
            joined = _with_report(line, line.receive()[0])
        except OtherKey:
            with self._lock:
                self.others[line.peer] += 1
        except LineEnded:
            pass
        finally:
            with self._lock:
                self.at_work -= 1
                if joined is None or self._closed:
                    line.close()
                else:
                    self._came.append(joined)


def _with_report(line: Line, words: dict[str, Any]) -> _Joined:
    try:
        report = REPORT.validate_python(words)
    except ValidationError:
        return _Joined(line, None, 0.0)
    return _Joined(line, report, report.clock - time.time())


def _news(meeting: Meeting, address: Address, joined: Sequence[_Joined], greetings: _Greetings) -> str:
    came = f": {', '.join(each.name for each in joined)}" if joined else ""
    others = f"; refused for another key: {greetings.in_words()}" if greetings.others else ""
    return f"{len(joined)} of {meeting.nodes - 1} have come to {address}{came}{others}"


def _too_few(
    meeting: Meeting, address: Address, joined: Sequence[_Joined], greetings: _Greetings
) -> ConfigError:
    came = ", ".join(each.name for each in joined) or "none"
    advice = (
        f"Start `erl-pipeline trainer-node {address}` on each of the others; it says there what it lacks"
        if meeting.others is None
        else f"All nodes must reach {address} and each other on all ports"
    )
    if greetings.others:
        advice += f". Connections that were refused, since they had another key: {greetings.in_words()}"
        if meeting.others is None:
            advice += (
                f". If one of them is a node: trainer.key_variable: the variable {meeting.key_variable} must "
                "hold the same here and where its trainer-node was started"
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
