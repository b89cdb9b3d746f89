"""A program that compares expressions by math-verify: one JSON line `[right, said]` in, one verdict out.

A child process compares. It is ended by the system where one comparison takes too much processor time or
memory. Libraries are imported before it is forked, so the next child is there within milliseconds.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import resource
import signal
import sys

SECONDS = 2.0
"""Processor time of one comparison."""
_BYTES = 2 * 2**30


def _verdict(right: str, said: str) -> str:
    # Without math-verify's own time limits, which are signals too: the timer below covers everything.
    from math_verify import parse, verify

    gold, target = (parse(_marked(text), parsing_timeout=None) for text in (right, said))
    if not target:
        return "unreadable"
    return "equal" if verify(gold, target, timeout_seconds=None) else "different"


def _marked(text: str) -> str:
    """The text as math-verify finds it: in a box, unless it is marked already."""
    return text if "\\boxed" in text or "$" in text else f"\\boxed{{{text}}}"


def main() -> None:
    """Answer line by line until there are no more."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print is no answer.
    logging.disable()
    _verdict("1/2", "0.5")  # Imports, and what a first comparison prepares, are done once.
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, resource.RLIM_INFINITY))
    owes = mmap.mmap(-1, 1)  # shared with the child: 1 while it works on a line
    os.write(answers, b"ready\n")
    while True:
        child = os.fork()
        if child == 0:
            _answer_lines(answers, owes)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        if owes[0]:
            _write(answers, "too_hard")


def _answer_lines(answers: int, owes: mmap.mmap) -> None:
    """What the child does. Where it is ended within a line, `owes` says that a verdict is missing."""
    # Unbuffered: the next child goes on where this one ended.
    with os.fdopen(os.dup(sys.stdin.fileno()), "rb", buffering=0) as lines:
        while line := lines.readline():
            owes[0] = 1
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                verdict = _verdict(*json.loads(line))
            except MemoryError:
                verdict = "too_hard"
            except (
                Exception
            ):  # Whatever a library of this size raises at a hostile text, it is no expression.
                verdict = "unreadable"
            signal.setitimer(signal.ITIMER_PROF, 0)
            owes[0] = 0
            _write(answers, verdict)


def _write(answers: int, verdict: str) -> None:
    os.write(answers, f"{json.dumps(verdict)}\n".encode())


if __name__ == "__main__":
    main()
