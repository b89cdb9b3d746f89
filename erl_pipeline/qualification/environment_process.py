"""An environment in a separate process, with a deadline for each call; and attempts in it, with turns that
are fixed in advance."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from erl_pipeline.qualification.check import Later
from erl_pipeline.qualification.hostile_answers import HostileAnswer
from erl_pipeline.qualification.learning import Learned
from erl_pipeline.qualification.served_environment import (
    AttemptFailure,
    EnvironmentSpec,
    Finished,
    Opening,
    Place,
    Prepared,
    Solution,
    Stepped,
)
from storage.errors import InputError

_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[2])
from erl_pipeline.qualification.served_environment import main
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
            self._line.send((name, arguments))
            while not self._line.poll(_LOOK_SECONDS):
                self._stopped()
                if time.monotonic() > deadline:
                    told = self._seconds if seconds is None else seconds
                    raise ProcessLost(f"{name} did not return within {told:g} seconds", hung=True)
            how, value = self._line.recv()
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


MOST_TURNS = 64
"""The most turns of an attempt; it is then abandoned. In a rollout the policy's context would end it."""
WRONG_ANSWERS = ("xyz", "[xyz]", "<answer>xyz</answer>", "\\boxed{xyz}", "I do not know.", "xyz 917468203")

_SHOWN = 60


@dataclass
class Seen:
    """What all attempts have shown, whichever check made them. Problems are counter-examples that name the
    task.

    `told` maps a task to what the environment said after its prompt.
    """

    finished: int = 0
    calls: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    told: dict[Place, list[Later]] = field(default_factory=dict)
    feedback_problem: str | None = None
    late_problem: str | None = None

    def called(self, seconds: float) -> None:
        """Count a call that returned in time."""
        self.calls += 1
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)


@dataclass(frozen=True)
class Played:
    """The result of one attempt. `problem` says what the environment did if it could not go on."""

    reward: float
    over: bool
    turns: int
    problem: str | None = None


class Attempts:
    """Plays attempts in an examinee."""

    def __init__(self, examinee: EnvironmentProcess, names: Callable[[Place], str], seen: Seen) -> None:
        self._examinee = examinee
        self._names = names
        self._seen = seen

    def opening(self, place: Place) -> Opening | str:
        """Begin an attempt; returns its opening, or the problem if it cannot begin. Raises ProcessLost."""
        opening = self._examinee.open(place)
        if isinstance(opening, AttemptFailure):
            return self._failed(place, "", opening)
        self._seen.called(opening.seconds)
        return opening

    def play(self, place: Place, turns: Sequence[str], *, secret: bool = False) -> Played:
        """Play an attempt with these turns, and then abandon it. In a `secret` attempt, what the environment
        says need not hide the answer. Raises ProcessLost."""
        opening = self.opening(place)
        if isinstance(opening, str):
            return Played(0.0, False, 0, opening)
        return self._go_on(place, iter(turns), secret)

    def repeat(self, place: Place, answer: str) -> Played:
        """Play an attempt that gives the same answer in each turn. Raises ProcessLost."""
        return self.play(place, list(repeat(answer, MOST_TURNS)))

    def use_up(self, place: Place, answers: Sequence[HostileAnswer]) -> Played:
        """Play an attempt that gives these answers, as many as it can. Raises ProcessLost."""
        opening = self.opening(place)
        if isinstance(opening, str):
            return Played(0.0, False, 0, opening)
        turns = (answer.after(opening.prompt) for answer in answers[:MOST_TURNS])
        return self._go_on(place, turns, secret=False)

    def _go_on(self, place: Place, turns: Iterator[str], secret: bool) -> Played:
        reward, number, over = 0.0, 0, False
        said: list[str] = []
        told: list[str] = []
        for text in turns:
            number += 1
            said.append(text)
            try:
                stepped = self._examinee.step(text)
            except ProcessLost as gone:
                raise ProcessLost(
                    f"task {self._names(place)}: answer {shown(text)}: {gone}", hung=gone.hung
                ) from gone
            if isinstance(stepped, AttemptFailure):
                return Played(0.0, False, number, self._failed(place, text, stepped))
            self._seen.called(stepped.seconds)
            reward += stepped.reward
            told.append(stepped.told)
            over = stepped.done
            if over:
                break
        if over:
            try:
                finished = self._examinee.finish()
            except ProcessLost as gone:
                text = f"task {self._names(place)}: after {shown(said[-1])}: {gone}"
                raise ProcessLost(text, hung=gone.hung) from gone
            if isinstance(finished, AttemptFailure):
                return Played(0.0, False, number, self._failed(place, said[-1], finished))
            self._seen.called(finished.seconds)
            self._seen.finished += 1
            if not finished.feedback.strip() and self._seen.feedback_problem is None:
                self._seen.feedback_problem = (
                    f"task {self._names(place)}: the feedback after {shown(said[-1])} is empty"
                )
            told += [finished.feedback, finished.trace]
        if not secret:
            self._seen.told.setdefault(place, []).append(Later("\n".join(told), "\n".join(said)))
        return Played(reward, over, number)

    def _failed(self, place: Place, text: str, failure: AttemptFailure) -> str:
        after = f" after {shown(text)}" if text else ""
        problem = f"task {self._names(place)}{after}: {failure.text}"
        if failure.kind == "late" and self._seen.late_problem is None:
            self._seen.late_problem = problem
        if failure.kind == "not finite" and self._seen.feedback_problem is None:
            self._seen.feedback_problem = problem
        return problem


def shown(text: str) -> str:
    """A text in the form used in counter-examples: escaped, and cut if it is long."""
    return ascii(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!a}... ({len(text):,} characters)"
