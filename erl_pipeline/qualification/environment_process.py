"""An environment in a separate process, with a deadline for each call."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Literal

from erl_pipeline.qualification.learning import Learned
from erl_pipeline.qualification.served_environment import (
    AttemptFailure,
    EnvironmentSpec,
    Finished,
    Opening,
    Place,
    Prepared,
    ServedEnvironment,
    Solution,
    Stepped,
)
from storage.errors import InputError, PipelineError

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from erl_pipeline.qualification.environment_process import main
main()
"""
_LOOK_SECONDS = 0.1
_PREPARE_SECONDS = 1800.0
"""Deadline for imports and for making all tasks, which may build an index; also for the first attempt of a
process."""
_GRACE_SECONDS = 5.0
"""The extra time after a call's deadline. The process enforces the deadline itself if the environment only
waits; if it still computes after this time, the process must be killed."""


class ProcessLost(Exception):
    """The process hung or died in a call; the text says which."""

    def __init__(self, text: str, *, hung: bool) -> None:
        super().__init__(text)
        self.hung = hung


class Raised(Exception):
    """A call raised an error outside an attempt, such as the call that makes the tasks."""


class EnvironmentProcess:
    """A process that serves an environment. Its hash seed is fixed; everything else is inherited.

    Args:
        stopped: raises when the user wants to stop; it is called while a call is under way.
    """

    def __init__(self, subject: EnvironmentSpec, hash_seed: int, stopped: Callable[[], None]) -> None:
        self._seconds = subject.step_seconds
        self._stopped = stopped
        self._warm = False
        ours, theirs = socket.socketpair()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
                start_new_session=True,  # Ctrl-C must reach only the examiner.
            )
        self._line: Connection[Any, Any] = Connection(ours.detach())
        self._subject = subject

    def prepare(self) -> Prepared:
        """Start the environment and make the tasks. Raises InputError for a mistake of the user, Raised, and
        ProcessLost."""
        self._ask("serve", self._subject, seconds=_PREPARE_SECONDS)
        prepared: Prepared = self._ask("prepare", seconds=_PREPARE_SECONDS)
        return prepared

    def solution(self, place: Place) -> Solution:
        """What a policy must not be told of a task. Raises as `prepare`."""
        solution: Solution = self._ask("solution", place, seconds=_PREPARE_SECONDS)
        return solution

    def open(self, place: Place) -> Opening | AttemptFailure:
        """Begin an attempt. Raises ProcessLost."""
        opening: Opening | AttemptFailure = self._call(
            "open", place, seconds=None if self._warm else _PREPARE_SECONDS
        )
        self._warm = True
        return opening

    def step(self, text: str) -> Stepped | AttemptFailure:
        """Make one turn. Raises ProcessLost."""
        stepped: Stepped | AttemptFailure = self._call("step", text)
        return stepped

    def finish(self) -> Finished | AttemptFailure:
        """Close an attempt that is over, and return what is said of it. Raises ProcessLost."""
        finished: Finished | AttemptFailure = self._call("finish")
        return finished

    def learn(self, places: Sequence[Place], answers: Sequence[str]) -> Learned | AttemptFailure:
        """Store, remember and train on what comes of these answers. Raises ProcessLost."""
        learned: Learned | AttemptFailure = self._call("learn", places, answers, seconds=_PREPARE_SECONDS)
        return learned

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._line.close()
        self._printed.close()

    def __enter__(self) -> EnvironmentProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def _call(self, name: str, *arguments: Any, seconds: float | None = None) -> Any:
        try:
            return self._ask(name, *arguments, seconds=seconds)
        except (Raised, InputError) as error:
            return AttemptFailure("raised", str(error))

    def _ask(self, name: str, *arguments: Any, seconds: float | None = None) -> Any:
        allowed = self._seconds + _GRACE_SECONDS if seconds is None else seconds
        deadline = time.monotonic() + allowed
        try:
            self._line.send_bytes(pickle.dumps((name, arguments)))
            while not self._line.poll(_LOOK_SECONDS):
                self._stopped()
                if time.monotonic() > deadline:
                    told = self._seconds if seconds is None else seconds
                    raise ProcessLost(f"{name} did not return within {told:g} seconds", hung=True)
            how, value = pickle.loads(self._line.recv_bytes())
        except (EOFError, OSError):
            raise ProcessLost(f"{name}: {self._death()}", hung=False) from None
        if how == "refuses":
            raise InputError(value)
        if how == "raises":
            raise Raised(f"{name}: {value}")
        return value

    def _death(self) -> str:
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._printed.seek(0)
        lines = self._printed.read().decode("utf-8", "replace").strip().splitlines()
        return f"the process ended {how}{f': {lines[-1]}' if lines else ''}"


Answer = tuple[Literal["gives", "refuses", "raises"], Any]
"""What a call returned, or the text of an error: one that the user can correct (`refuses`), or any other."""


def main() -> None:
    """Serve the environment that the first message names, until the connection is closed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    line: Connection[Any, Any] = Connection(int(sys.argv[1]))
    served: ServedEnvironment | None = None
    while True:
        try:
            name, arguments = pickle.loads(line.recv_bytes())
        except EOFError:
            return
        answer: Answer
        try:
            if served is None:
                served = ServedEnvironment(*arguments)
                answer = ("gives", None)
            else:
                answer = ("gives", getattr(served, name)(*arguments))
        except PipelineError as error:
            answer = ("refuses", str(error))
        except Exception as error:  # The examiner wants to know whatever the environment raises.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}"
            answer = ("raises", f"{type(error).__name__}: {error} ({place})")
        line.send_bytes(pickle.dumps(answer))


def _end_with(parent: int) -> None:
    """End when the examiner is gone, even in the middle of a call that never returns."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
