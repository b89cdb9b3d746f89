"""What runs on each other machine of a trainer with several nodes: it starts ranks for a run, and ends
them."""

from __future__ import annotations

import platform
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from erl_pipeline.network import Address, interface_of
from erl_pipeline.trainers.fsdp2.devices import devices_here
from erl_pipeline.trainers.fsdp2.line import Line, LineEnded, OtherKey
from erl_pipeline.trainers.fsdp2.node_report import QUESTION, REPORT, look
from erl_pipeline.trainers.fsdp2.rank_processes import RankNews, RankProcesses, Share, wait_for_news
from storage.errors import PipelineError

_RETRY_SECONDS = 0.5
_CONNECT_SECONDS = 3.0
_SHARE: TypeAdapter[Share] = TypeAdapter(Share)

Tell = Callable[[str], None]
"""Shows the user one line."""


def serve(address: Address, key: bytes, tell: Tell, stop: threading.Event) -> None:
    """Take part in every training that begins at an address, until `stop` is set.

    Nothing that fails ends this, since the next run may be a better one: it is told.
    """
    devices = devices_here()
    has = f"{devices.gpus} GPUs" if devices.gpus else f"no GPU and {devices.cores} cores"
    tell(f"{platform.node()} ({has}) waits for runs that train at {address}. Ctrl-C ends this.")
    why = told = ""
    while not stop.is_set():
        try:
            tell(_take_part(address, key, tell, stop))
        except OSError as error:
            why = f"No run trains there now ({error.strerror or error}); trying again until one does."
        except OtherKey:
            why = f"{address} has another key than this node; trying again."
        except LineEnded as error:
            why = f"No training can be joined there now ({error}); trying again."
        # Said once: while a run does something else than train, it holds again and again.
        if why != told:
            tell(why)
            told = why
        stop.wait(_RETRY_SECONDS)


def take_part(address: Address, key: bytes) -> str:
    """Take part in the training that waits at an address, on a node that a runner has found for it; returns
    how that ended. What happens meanwhile is printed.

    Raises PipelineError where it cannot be joined.
    """
    devices_here()  # Imports torch. Once it has joined, the stage waits for its answers.
    try:
        return _take_part(address, key, lambda line: print(line, flush=True), threading.Event())
    except (OSError, LineEnded) as error:
        raise PipelineError(f"it cannot join the training at {address}: {error}") from error


def _take_part(address: Address, key: bytes, tell: Tell, stop: threading.Event) -> str:
    """Take part in one training; returns how it ended.

    Raises OSError and LineEnded where none can be joined.
    """
    connection = socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS)
    line = Line(connection)
    try:
        line.introduce(key)
        words, _ = line.receive()
        try:
            question = QUESTION.validate_python(words.get("question"))
        except ValidationError as error:
            raise LineEnded("it asks something unknown") from error
        line.send(REPORT.dump_python(look(question), mode="json"))
        tell("A run trains there; this node has joined.")
        return _Work(line, tell).until_it_ends(stop)
    finally:
        line.close()


class _Work:
    """The ranks that this node has for one training."""

    def __init__(self, line: Line, tell: Tell) -> None:
        self._line = line
        self._tell = tell
        self._ranks: RankProcesses | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="erl-pipeline-trainer-node-"))
        self._given = self._folder / "sequences.safetensors"
        self._refused = ""

    def until_it_ends(self, stop: threading.Event) -> str:
        """Do what the stage's machine says, until it ends the line or `stop` is set; returns how it ended."""
        try:
            while not stop.is_set():
                sources = [] if self._ranks is None else self._ranks.sources
                if self._line in wait_for_news([self._line, *sources]):
                    self._hear()
                for news in () if self._ranks is None else self._ranks.news():
                    self._pass_on(news)
            self._leave("trainer-node was ended there")
            return "The ranks here were ended."
        except LineEnded as error:
            return self._refused or f"The training has ended ({error}); so have the ranks here."
        except OSError as error:
            self._leave(str(error))
            return f"This node could not train: {error}"
        finally:
            # The line first: that the ranks end is no news.
            self._line.close()
            if self._ranks is not None:
                self._ranks.end()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _leave(self, why: str) -> None:
        with suppress(LineEnded):
            self._line.send({"gone": why})

    def _hear(self) -> None:
        words, data = self._line.receive()
        if "refused" in words:
            self._refused = "The run cannot train with this node: " + "; ".join(words["refused"])
        elif "start" in words:
            share = _SHARE.validate_python({**words["start"], "interface": interface_of(self._line.own)})
            self._ranks = RankProcesses(share, self._folder)
            ids = ", ".join(map(str, self._ranks.process_ids))
            self._tell(f"Started ranks {[*share.ranks]} of {share.processes} (process ids {ids}).")
        elif self._ranks is not None:
            self._given.write_bytes(data)
            self._ranks.order({**words["order"], "sequences": str(self._given)})

    def _pass_on(self, news: RankNews) -> None:
        self._line.send(asdict(news))
        if news.said is None:
            self._tell(f"Rank {news.rank} has ended (status {news.status}).")
