"""A program that compares expressions by math-verify: one JSON line `[right, said]` in, one verdict out.

It is given connections over its standard input, a socket, and forks a child for each, which answers line by
line until the connection ends. Libraries are imported before the fork, so a child is there within
milliseconds. The system ends a child whose comparison takes too much processor time; the asker then sees the
end of the connection.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import sys

SECONDS = 2.0
"""Processor time of one comparison."""
GIGABYTES = 1
"""Address space of the process that compares."""


def _verdict(right: str, said: str) -> str:
    # Without math-verify's own time limits, which are signals too: the timer below covers everything.
    from math_verify import parse, verify

    gold, target = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (right, said))
    if not target:
        return "unreadable"
    return "equal" if verify(gold, target, timeout_seconds=None) else "different"


def main() -> None:
    """Serve connections until there are no more."""
    asker = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    os.dup2(sys.stderr.fileno(), sys.stdin.fileno())
    logging.disable()
    _verdict("1/2", "0.5")  # Imports, and what a first comparison prepares, are done once.
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES * 2**30, resource.RLIM_INFINITY))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Ended children need not be waited for.
    asker.sendall(b"r")
    while True:
        _, given, _, _ = socket.recv_fds(asker, 1, 1)
        if not given:
            return
        if os.fork() == 0:
            asker.close()
            _answer_lines(given[0])
            os._exit(0)
        os.close(given[0])


def _answer_lines(connection: int) -> None:
    with os.fdopen(connection, "r+b", buffering=0) as lines:
        while line := lines.readline():
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
            try:
                lines.write(f"{json.dumps(verdict)}\n".encode())
            except BrokenPipeError:
                return


if __name__ == "__main__":
    main()
