"""Another node of a trainer: `erl-pipeline trainer-node` on loopback; and ranks, found by their command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from erl_pipeline.network import Address
from erl_pipeline.trainers.fsdp2 import Fsdp2TrainerConfig
from erl_pipeline.trainers.fsdp2.launcher import RANK_MODULE
from erl_pipeline.trainers.fsdp2.nodes import NodesConfig


def ranks_below(process: int, folder: Path | None = None) -> dict[str, psutil.Process]:
    """The running ranks that a process has started, by their number; with a folder, those whose orders are
    below it. Other children may have ended, and no longer have a command line."""
    found = {}
    for child in psutil.Process(process).children(recursive=True):
        with suppress(psutil.Error):
            words = child.cmdline()
            if words[2:3] == [RANK_MODULE] and (folder is None or Path(words[3]).is_relative_to(folder)):
                found[child.environ()["RANK"]] = child
    return found


def free_address() -> Address:
    """A port of loopback at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Address(*free.getsockname())


class Node:
    """The process of the command, which meets runs at a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self.address = free_address()
        self.folder = folder
        self._output = folder / "output"
        folder.mkdir(parents=True)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "command_line.main", "trainer-node", str(self.address)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(folder)},
            )

    @property
    def said(self) -> str:
        """What it has told its user."""
        return self._output.read_text()

    @property
    def ranks(self) -> dict[str, psutil.Process]:
        """Its running ranks, by number."""
        return ranks_below(self.process.pid)

    def has_stepped(self) -> bool:
        """Whether rank 1 has taken its first step."""
        logs = self.folder.glob("erl-pipeline-trainer-node-*/ranks_*/attempt_0/0/stderr.log")
        return any("step 1," in log.read_text() for log in logs)

    def settings(self, **changed: Any) -> Fsdp2TrainerConfig:
        """Two ranks, one of them here."""
        given = {"processes": 2, "nodes": 2, "address": str(self.address)}
        return Fsdp2TrainerConfig.model_validate({**given, **changed})

    def config(self, **changed: Any) -> NodesConfig:
        """Where this process meets it."""
        return NodesConfig(**{"count": 2, "address": self.address, "start_seconds": 60.0, **changed})


@contextmanager
def running_node(folder: Path) -> Iterator[Node]:
    """A node, which is gone afterwards."""
    node = Node(folder)
    try:
        yield node
    finally:
        node.process.send_signal(signal.SIGTERM)
        node.process.wait()
