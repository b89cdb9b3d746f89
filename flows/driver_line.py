"""The driver's end of a connection to a process that computes stages (`flows.stage_process`)."""

from __future__ import annotations

import pickle
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from erl_pipeline.plan.job import StageJob
from erl_pipeline.plan.listener import Listener
from flows.stage_answers import Computed, Failed, FromWorker, Told
from flows.stage_process import Close, Compute, FromDriver, Stop
from storage.artifacts.manifest import Manifest

_LOOK_SECONDS = 0.1


class LineBroken(Exception):
    """The process at the other end is gone, or cannot be reached any more."""


class DriverLine:
    """Sends stages to a process, one after the other, and receives its messages."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def compute(self, job: StageJob, listener: Listener, stop: threading.Event) -> Manifest:
        """Have a stage computed. Raises what the stage raised, and LineBroken when the process is gone."""
        asked_to_stop = False
        self._send(Compute(job))
        while True:
            message = self._receive()
            if isinstance(message, Told):
                message.tell(listener)
            elif isinstance(message, Computed):
                return message.manifest
            elif isinstance(message, Failed):
                raise message.error
            elif stop.is_set() and not asked_to_stop:
                asked_to_stop = True
                self._send(Stop())

    def ask_to_close(self) -> None:
        """Ask it to end its models and servers, and then itself."""
        with suppress(LineBroken):  # It may have died since its last stage.
            self._send(Close())

    def has_ended(self, seconds: float) -> bool:
        """Wait at most this long for the end of an idle process, and say whether it has ended. (An idle
        process sends nothing.)"""
        try:
            if self._connection.poll(seconds):
                self._connection.recv_bytes()
        except (EOFError, OSError):
            return True
        return False

    def close(self) -> None:
        """Close the connection; a process at the other end then ends."""
        self._connection.close()

    def _send(self, message: FromDriver) -> None:
        content = pickle.dumps(message)
        try:
            self._connection.send_bytes(content)
        except OSError as error:
            raise LineBroken from error

    def _receive(self) -> FromWorker | None:
        """Its next message; None if none came within `_LOOK_SECONDS`."""
        try:
            content = self._connection.recv_bytes() if self._connection.poll(_LOOK_SECONDS) else None
        except (EOFError, OSError) as error:
            raise LineBroken from error
        message: FromWorker | None = None if content is None else pickle.loads(content)
        return message
