"""How the machines of a training find each other, in torch's store."""

from __future__ import annotations

import platform
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from erl_pipeline.network import Address, OtherNodes, interface_of
from erl_pipeline.trainers.fsdp2.devices import (
    QUESTION,
    REPORT,
    TrainerNodeQuestion,
    TrainerNodeReport,
    devices_here,
    look,
    problems_of,
)
from erl_pipeline.trainers.fsdp2.launcher import Launch, LaunchedRanks, connect, last_lines
from erl_pipeline.trainers.interface import TellWaiting
from storage.errors import ConfigError, PipelineError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not declared so

SILENCE_SECONDS = 10.0
"""A node that has not been heard for so long is lost."""
_BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_RETRY_SECONDS = 0.5
_CONNECT_SECONDS = 15.0
_REFUSAL_SECONDS = 3.0
_AWAITED = "the other nodes of the trainer"

Tell = Callable[[str], None]
"""Shows the user one line."""


@dataclass(frozen=True)
class NodesConfig:
    """Where the nodes of a trainer find each other.

    `address` is one of the machine that computes the stage; port 0 is any free one. `others` are invited to
    come; None where the user starts them. They must see `folders`, which the ranks read.
    """

    count: int
    address: Address
    start_seconds: float
    folders: Sequence[Path] = ()
    others: OtherNodes | None = None
    raise_if_stopped: Callable[[], None] = lambda: None
    tell_waiting: TellWaiting = lambda _what, _seconds, _news: None

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
class NodeAnswer:
    """What a node is told: the ranks that it starts, or why it cannot train."""

    launch: Launch | None
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class NodeEnd:
    """Why a node trains no more: the rank that has ended, and its last lines, or what `gone` says."""

    rank: int | None = None
    status: int | None = None
    lines: str = ""
    gone: str = ""


_ANSWER: TypeAdapter[NodeAnswer] = TypeAdapter(NodeAnswer)
NODE_END: TypeAdapter[NodeEnd] = TypeAdapter(NodeEnd)


def gather(store: TCPStore, config: NodesConfig, launch: Launch) -> list[str]:
    """Wait for the other nodes, and tell each what to start; returns their names, from node 1 on. `launch`:
    what this machine starts.

    Raises ConfigError where fewer nodes come than are needed, and where one has other software, too few
    devices or another store.
    """
    sign = launch.orders / "sign"
    sign.write_text(secrets.token_hex(16), encoding="utf-8")
    question = TrainerNodeQuestion(sign, config.folders)
    store.set("question", QUESTION.dump_json(question).decode())
    if config.others is not None:
        config.others.invite(_TakePart(launch.address), config.raise_if_stopped)
    began = told = time.monotonic()
    reports: list[TrainerNodeReport | None] = []
    while len(reports) < config.count - 1:
        config.raise_if_stopped()
        now = time.monotonic()
        if now - told > _BEAT_SECONDS:
            told = now
            config.tell_waiting(_AWAITED, told - began, _news(config, launch.address, reports))
        if store.check([key := f"report/{len(reports) + 1}"]):
            reports.append(_report_of(store.get(key)))
            continue
        if now - began > config.start_seconds:
            raise _too_few(config, launch.address, reports)
        time.sleep(_LOOK_SECONDS)
    answers = _answers(launch, reports, look(question, config.own_number()))
    for number, answer in enumerate(answers, 1):
        store.set(f"answer/{number}", _ANSWER.dump_json(answer).decode())
    wrong = [
        f"node {'?' if report is None else report.name}: {problem}"
        for report, answer in zip(reports, answers, strict=True)
        for problem in answer.problems
    ]
    if wrong:
        # They read it before the store is gone.
        until = time.monotonic() + _REFUSAL_SECONDS
        while any(store.check([f"answer/{number}"]) for number in range(1, config.count)):
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_SECONDS)
        raise ConfigError("\n  ".join(["trainer.nodes: these nodes cannot train together:", *wrong]))
    return [report.name for report in reports if report is not None]


def _report_of(words: bytes) -> TrainerNodeReport | None:
    try:
        return REPORT.validate_json(words)
    except ValidationError:
        return None


def _answers(
    launch: Launch, reports: Sequence[TrainerNodeReport | None], here: TrainerNodeReport
) -> list[NodeAnswer]:
    answers = []
    taken = dict.fromkeys(here.gpus_of(launch.processes), "the machine that computes the stage")
    for node, report in enumerate(reports, 1):
        if report is None:
            problems = ["it has another version of erl-pipeline: install the same on both"]
        else:
            problems = list(problems_of(report, here, launch.processes, launch.nodes, taken))
            taken.update(dict.fromkeys(report.gpus_of(launch.processes), f"node {report.name}"))
        answers.append(NodeAnswer(None if problems else replace(launch, node=node), problems))
    return answers


def _news(config: NodesConfig, address: Address, reports: Sequence[TrainerNodeReport | None]) -> str:
    names = [each.name for each in reports if each is not None]
    came = f": {', '.join(names)}" if names else ""
    return f"{len(reports)} of {config.count - 1} have come to {address}{came}"


def _too_few(
    config: NodesConfig, address: Address, reports: Sequence[TrainerNodeReport | None]
) -> ConfigError:
    came = ", ".join(each.name for each in reports if each is not None) or "none"
    advice = (
        f"Start `erl-pipeline trainer-node {address}` on each of the others; it says there what it lacks"
        if config.others is None
        else f"All nodes must reach {address} and each other on all ports"
    )
    return ConfigError(
        f"trainer.nodes: {config.count}; {len(reports)} of {config.count - 1} other nodes came within "
        f"trainer.start_seconds ({config.start_seconds:g}): {came}. {advice}"
    )


class _NotJoined(Exception):
    """What listens at the address is no training that this node can join."""


@dataclass(frozen=True)
class _TakePart:
    """Take part in the training at an address, on a node that a runner has found for it. It can be pickled.

    Raises PipelineError where it cannot be joined.
    """

    address: Address

    def __call__(self) -> str:
        devices_here()  # Imports torch. Once it has joined, the stage waits for its answers.
        try:
            return take_part(self.address, lambda line: print(line, flush=True), threading.Event())
        except (OSError, _NotJoined) as error:
            raise PipelineError(f"it cannot join the training at {self.address}: {error}") from error


def serve(address: Address, tell: Tell, stop: threading.Event) -> None:
    """Take part in every training that begins at an address, until `stop` is set.

    Nothing that fails ends this, since the next run may be a better one: it is told.
    """
    devices = devices_here()
    has = f"{devices.gpus} GPUs" if devices.gpus else f"no GPU and {devices.cores} cores"
    tell(f"{platform.node()} ({has}) waits for runs that train at {address}. Ctrl-C ends this.")
    why = told = ""
    while not stop.is_set():
        try:
            tell(take_part(address, tell, stop))
        except OSError as error:
            why = f"No run trains there now ({error.strerror or error}); trying again until one does."
        except _NotJoined as error:
            why = f"No training can be joined there now ({error}); trying again."
        # Said once: while a run does something else than train, it holds again and again.
        if why != told:
            tell(why)
            told = why
        stop.wait(_RETRY_SECONDS)


def take_part(address: Address, tell: Tell, stop: threading.Event) -> str:
    """Take part in one training; returns how it ended. Raises OSError where none is there."""
    training = _Training(connect(address, _CONNECT_SECONDS))
    number = _own_number(address)
    folder = Path(tempfile.mkdtemp(prefix="erl-pipeline-trainer-node-"))
    ranks: LaunchedRanks | None = None
    try:
        node, answer = training.ask(number, stop)
        if answer.launch is None:
            return "The run cannot train with this node: " + "; ".join(answer.problems)
        tell("A run trains there; this node has joined.")
        launch = replace(answer.launch, address=address, interface=interface_of(number))
        ranks = LaunchedRanks(launch, folder)
        tell(f"Starts ranks {[*launch.ranks]} of {launch.nodes * launch.processes}.")
        while training.alive and not ranks.ended() and not stop.wait(_LOOK_SECONDS):
            pass
        if stop.is_set():
            training.say(node, NodeEnd(gone="trainer-node was ended there"))
            return "The ranks here were ended."
        failure = ranks.failure()
        if failure is not None:
            lines = last_lines(ranks.log_of(failure.rank))
            training.say(node, NodeEnd(failure.rank, failure.status, lines))
            tell(f"Rank {failure.rank} has ended (status {failure.status}).")
        return "The training has ended; so have the ranks here."
    except RuntimeError as error:  # torch's, of a store that is gone
        raise _NotJoined(f"it has ended: {error}") from error
    finally:
        training.leave()
        if ranks is not None:
            ranks.end()
        shutil.rmtree(folder, ignore_errors=True)


class _Training:
    """The store of a training, as another node sees it. `alive`: whether it has just answered; asked in a
    thread, since a store behind a cut cable answers after many minutes."""

    def __init__(self, store: TCPStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._heard = time.monotonic()
        self._gone = False
        self._beats = ""

    @property
    def alive(self) -> bool:
        return not self._gone and time.monotonic() - self._heard < SILENCE_SECONDS

    def ask(self, number: str, stop: threading.Event) -> tuple[int, NodeAnswer]:
        """Report on this machine; returns the number of this node, and what it is told. Raises _NotJoined
        where nobody answers."""
        until = time.monotonic() + _CONNECT_SECONDS
        while not self._store.check(["question"]):
            if time.monotonic() > until or stop.is_set():
                raise _NotJoined("nobody there asks for nodes")
            time.sleep(_LOOK_SECONDS)
        try:
            report = look(QUESTION.validate_json(self._store.get("question")), number)
        except ValidationError as error:
            raise _NotJoined("it has another version of erl-pipeline") from error
        node = self._store.add("nodes", 1)
        self._beats = f"beats/{node}"
        threading.Thread(target=self._beat, daemon=True).start()
        self._store.set(f"report/{node}", REPORT.dump_json(report).decode())
        while self.alive and not stop.wait(_LOOK_SECONDS):
            with self._lock:
                if self._store.check([f"answer/{node}"]):
                    words = self._store.get(f"answer/{node}")
                    self._store.delete_key(f"answer/{node}")
                    return node, _ANSWER.validate_json(words)
        raise _NotJoined("it has ended before it needed this node")

    def say(self, node: int, end: NodeEnd) -> None:
        """Say why this node trains no more."""
        if self.alive and self._lock.acquire(timeout=_BEAT_SECONDS):
            with suppress(RuntimeError):
                self._store.set(f"end/{node}", NODE_END.dump_json(end).decode())
            self._lock.release()

    def leave(self) -> None:
        self._left.set()

    def _beat(self) -> None:
        while not self._left.wait(_BEAT_SECONDS):
            try:
                with self._lock:
                    self._store.add(self._beats, 1)
            except RuntimeError:
                self._gone = True
                return
            self._heard = time.monotonic()


def _own_number(address: Address) -> str:
    """The number of this machine's address towards another. Raises OSError."""
    number = address.number()
    with socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((number, address.port))
        return str(probe.getsockname()[0])
