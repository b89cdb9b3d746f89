"""The scorer `math`: expressions compared by math-verify, in processes of its own.

math-verify's own time limits are signals, which work only in the main thread of a process, and a thread
cannot be stopped while it computes a power of a power. So other processes compare, several at a time: an
answer that takes long holds up no other. Each has two seconds of processor time for an answer and limited
memory, and is replaced where it needs more. Expressions that are visibly too large are not given to it.
"""

import atexit
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from math import log10
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.environments.scorers.expressions import latex_of, other_signs, uniform
from erl_pipeline.environments.scorers.interface import Scored, Scorer, up_to

_LONGEST = 400  # characters; the parser's time grows with the square of the nesting
_DEEPEST = 25
AT_ONCE = 16
"""The most comparisons at a time: they share the processor fairly, and each needs some 20 MB."""

Verdict = Literal["equal", "different", "unreadable", "too_hard"]


class _Comparers:
    """Processes that compare, forked by one program, which is started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held to take or give back a process, never while one compares
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._idle: list[socket.socket] = []
        self._program: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def ask(self, right: str, said: str) -> Verdict:
        """How an answer compares with the right one. Raises RuntimeError where no process can compare."""
        with self._free:
            with self._lock:
                program = self._started()
                taken = self._idle.pop() if self._idle else self._new()
            answer = _exchange(taken, f"{json.dumps([right, said])}\n".encode())
            with self._lock:
                if answer and program is self._program:
                    self._idle.append(taken)
                else:
                    taken.close()
            if answer:
                verdict: Verdict = json.loads(answer)
                return verdict
            if program.poll() is not None:
                raise RuntimeError("the program that compares expressions was ended from outside")
            return "too_hard"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._program is not None and self._program.poll() is None:
            return self._program
        self._end()
        worker = Path(__file__).with_name("expressions.py")
        self._line, theirs = socket.socketpair()
        with theirs:
            self._program = subprocess.Popen(
                # Without -P, its folder's modules, such as `numbers`, would hide standard ones.
                [sys.executable, "-P", str(worker)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        if not self._line.recv(1):
            self._end()
            raise RuntimeError(
                f"the program that compares expressions did not start; run {worker} to see why"
            )
        return self._program

    def _new(self) -> socket.socket:
        assert self._line is not None
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._line, [b"c"], [theirs.fileno()])
        return ours

    def _end(self) -> None:
        while self._idle:
            self._idle.pop().close()
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._program is not None:
            self._program.kill()
            self._program.wait()
            self._program = None

    def close(self) -> None:
        """End the program. It would also end by itself when this process does."""
        with self._lock:
            self._end()


def _exchange(connection: socket.socket, line: bytes) -> bytes:
    """The line that answers a line; empty where the connection ends without one."""
    answer = b""
    try:
        connection.sendall(line)
        while not answer.endswith(b"\n"):
            part = connection.recv(64)
            if not part:
                return b""
            answer += part
    except (BrokenPipeError, ConnectionResetError):
        return b""
    return answer


_COMPARERS = _Comparers()
atexit.register(_COMPARERS.close)

MOST_DIGITS = 10_000
_LARGEST_FACTORIAL = 3_000  # it has 9,131 digits
_LARGEST_EXPONENT = 10.0 * MOST_DIGITS

_POWER = r"\s*(?:\^|\*\*)[\s{(]*"
_TOWER = re.compile(rf"[0-9]+(?:\s*[)}}]?{_POWER}[0-9]+)+")
_FACTORIAL = re.compile(r"([0-9]+)[\s)}]*!")
_MAGNITUDE = re.compile(r"[0-9]+")


def has_huge_number(text: str) -> bool:
    """Whether a power of whole numbers (`9^{9^9}`, `10**(10**8)`) or a factorial in a text has more than
    `MOST_DIGITS` digits. Powers of anything else are not looked at."""
    towers = ([int(number) for number in _MAGNITUDE.findall(found[0])] for found in _TOWER.finditer(text))
    factorials = (int(found[1]) for found in _FACTORIAL.finditer(text))
    return any(map(_is_huge, towers)) or any(number > _LARGEST_FACTORIAL for number in factorials)


def _is_huge(tower: list[int]) -> bool:
    """For `[a, b, c]`, whether a ** (b ** c) is huge."""
    exponent = 1.0
    for base in reversed(tower[1:]):
        exponent = _power(base, exponent)
    return tower[0] > 1 and exponent * log10(tower[0]) > MOST_DIGITS


def _power(base: int, exponent: float) -> float:
    """The power, or, where it is larger, a number that is large enough to count as huge."""
    if not exponent:
        return 1.0  # also of a base that is too large for a float
    if base <= 1:
        return float(base)
    if exponent * log10(base) > log10(_LARGEST_EXPONENT):
        return _LARGEST_EXPONENT
    power: float = float(base) ** exponent
    return power


def _math(answer: str, payload: Mapping[str, Any]) -> float | Scored:
    right = str(payload["answer"])
    if uniform(answer) == uniform(right):  # A right answer that math-verify cannot read is right too.
        return 1.0
    if _depth(answer) > _DEEPEST:
        return Scored(0.0, f"An expression that nests more than {_DEEPEST} brackets is not looked at.")
    said, wanted = latex_of(answer), latex_of(right)
    if said is None or wanted is None:
        return Scored(0.0, "It is not one expression.")
    verdict = "too_hard" if has_huge_number(said) else _COMPARERS.ask(wanted, said)
    if verdict == "unreadable":
        return Scored(0.0, "It cannot be read as an expression.")
    if verdict == "too_hard":
        return Scored(0.0, "It is too large an expression to be compared.")
    return float(verdict == "equal" and not other_signs(wanted, said))


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth -= 1
    return deepest


def _check(payload: Mapping[str, Any]) -> None:
    right = str(payload["answer"])
    if not right.strip() or len(right) > _LONGEST or _depth(right) > _DEEPEST:
        raise ValueError(
            f"answer: {right[:80]!r}; allowed with scorer: math are expressions of 1 to {_LONGEST} characters"
        )


math = Scorer(
    up_to(_LONGEST, _math),
    _check,
    packages=("math_verify",),
    install="pip install 'erl-pipeline[math]'",
)
"""1 where the expressions are equal: `1/2` and `0.5`, `(x+1)^2` and `x^2+2x+1`, sets, intervals, matrices."""
