"""A program that compares expressions by math-verify: one JSON line `[right, said]` in, one verdict out.

It is ended by the system where one comparison takes more processor time or memory than it may.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys

SECONDS = 5.0
"""Processor time of one comparison."""
_BYTES = 2 * 2**30


def _verdict(right: str, said: str) -> str:
    # Its own limits are signals too; the one below stands for all of them.
    from math_verify import parse, verify

    gold, target = (parse(_marked(text), parsing_timeout=None) for text in (right, said))
    if not target:
        return "unreadable"
    return "equal" if verify(gold, target, timeout_seconds=None) else "different"


def _marked(text: str) -> str:
    """As math-verify finds it: in a box, unless it is marked already."""
    return text if "\\boxed" in text or "$" in text else f"\\boxed{{{text}}}"


def main() -> None:
    """Answer line by line until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What libraries print is no answer.
    import math_verify  # noqa: F401 - its import is not part of the first comparison

    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, resource.RLIM_INFINITY))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            verdict = _verdict(*json.loads(line))
        except MemoryError:
            verdict = "too_hard"
        except Exception:  # Whatever a library of this size raises at a hostile text, it is no expression.
            verdict = "unreadable"
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main()
