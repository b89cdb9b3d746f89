"""The scorer `math`: expressions compared by math-verify, in a process of its own.

math-verify's own time limits are signals, which work only in the main thread of a process, and a thread
cannot be stopped while it computes a power of a power. So a second process compares. It has two seconds of
processor time and limited memory for each answer, and is replaced where it needs more. Expressions that are
visibly too large are not given to it.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from erl_pipeline.environments.scorers.interface import Scored, Scorer, too_long
from erl_pipeline.environments.scorers.magnitude import has_huge_number
from erl_pipeline.environments.scorers.texts import normalised

_LONGEST = 400  # characters; the parser's time grows with the square of the nesting
_DEEPEST = 25

Verdict = Literal["equal", "different", "unreadable", "too_hard"]


class _Process:
    """The process that compares; started when it is first asked, and again after it was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None

    def ask(self, right: str, said: str) -> Verdict:
        """How an answer compares with the right one."""
        with self._lock:
            running = self._running or self._start()
            assert running.stdin is not None
            assert running.stdout is not None
            try:
                running.stdin.write(json.dumps([right, said]) + "\n")
                running.stdin.flush()
                line = running.stdout.readline()
            except BrokenPipeError:
                line = ""
            if not line:
                self._end()
                return "too_hard"
            verdict: Verdict = json.loads(line)
            return verdict

    def _start(self) -> subprocess.Popen[str]:
        worker = Path(__file__).with_name("compare_expressions.py")
        self._running = subprocess.Popen(
            # Without -P, imports would find its folder's modules, such as `numbers`, before standard ones.
            [sys.executable, "-P", str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        if self._running.stdout is not None and self._running.stdout.readline() != "ready\n":
            self._end()
            raise RuntimeError(
                f"the process that compares expressions did not start; run {worker} to see why"
            )
        return self._running

    def _end(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None

    def close(self) -> None:
        """End the process. It would also end by itself when this one does."""
        with self._lock:
            self._end()


_PROCESS = _Process()
atexit.register(_PROCESS.close)


def _math(answer: str | None, payload: Mapping[str, Any]) -> float | Scored:
    if answer is None or (long := too_long(answer, _LONGEST)):
        return 0.0 if answer is None else long or 0.0
    right = str(payload["answer"])
    if normalised(answer) == normalised(right):
        return 1.0
    if _depth(answer) > _DEEPEST:
        return Scored(0.0, f"An expression that nests more than {_DEEPEST} brackets is not looked at.")
    verdict = "too_hard" if has_huge_number(answer) else _PROCESS.ask(right, answer)
    if verdict == "unreadable":
        return Scored(0.0, "It cannot be read as an expression.")
    if verdict == "too_hard":
        return Scored(0.0, "It is too large an expression to be compared.")
    return float(verdict == "equal")


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
    _math,
    _check,
    packages=("math_verify",),
    install="pip install 'erl-pipeline[math]'",
    bounded=True,
)
"""1 where the expressions are equal: `1/2` and `0.5`, `(x+1)^2` and `x^2+2x+1`, sets, intervals, matrices."""
