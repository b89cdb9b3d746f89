"""Another node of a trainer: `erl-pipeline trainer-node` on loopback."""

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
from erl_pipeline.trainers.fsdp2.meeting import Meeting
from erl_pipeline.trainers.fsdp2.rank_processes import RANK_MODULE

KEY = "a key for tests only"
VARIABLE = "KEY_OF_TESTS"


class Node:
    """The process of the command, which meets runs at a free port of 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.folder = folder
        self._output = folder / "output"
        folder.mkdir(parents=True)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "command_line.main", "trainer-node", self.address),
                    *("--key-variable", VARIABLE),
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, VARIABLE: KEY, "TMPDIR": str(folder)},
            )

    @property
    def said(self) -> str:
        """What it has told its user."""
        return self._output.read_text()

    @property
    def ranks(self) -> dict[str, psutil.Process]:
        """Its running ranks, by number."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                words = child.cmdline()
                if words[2:3] == [RANK_MODULE]:
                    found[words[3]] = child
        return found

    def has_stepped(self) -> bool:
        """Whether rank 1 has taken its first step."""
        logs = self.folder.glob("erl-pipeline-trainer-node-*/rank-1.log")
        return any("step 1," in log.read_text() for log in logs)

    def settings(self, **changed: Any) -> Fsdp2TrainerConfig:
        """Two ranks, one of them here."""
        given = {"processes": 2, "nodes": 2, "address": self.address, "key_variable": VARIABLE}
        return Fsdp2TrainerConfig.model_validate({**given, **changed})

    def meeting(self, **changed: Any) -> Meeting:
        """Where this process meets it."""
        given = {
            "processes": 2,
            "nodes": 2,
            "address": Address.parse(self.address),
            "key": KEY.encode(),
            "key_variable": VARIABLE,
            "start_seconds": 60.0,
        }
        return Meeting(**{**given, **changed})


@contextmanager
def running_node(folder: Path) -> Iterator[Node]:
    """A node, which is gone afterwards."""
    node = Node(folder)
    try:
        yield node
    finally:
        node.process.send_signal(signal.SIGTERM)
        node.process.wait()
