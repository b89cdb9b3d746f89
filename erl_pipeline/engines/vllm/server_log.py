"""What the log of a vLLM server says about why it ended."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TAIL_LINES = 30
_TAIL_BYTES = 32768
_SEARCHED_BYTES = 2**20
_MOST_REASONS = 3

# Exceptions, with or without what vLLM writes before a line, and workers that a signal ended: with -9 the
# kernel ends a process whose memory it needs.
_REASON = re.compile(
    r"^(?:\([^)]* pid=\d+\) ERROR [^\[]*\[[^\]]*\] )?"
    r"([A-Za-z_][\w.]*(?:Error|Exception): .+|Worker proc .* died unexpectedly \(exit code: -\d+\).*)$"
)
# Such a line only repeats an exception of another process, which is further up in the log.
_ECHO = "root cause"


def last_lines(log: Path) -> str:
    """The last lines of the log."""
    if not log.exists():
        return "(no log)"
    return "\n".join(_lines(log, _TAIL_BYTES)[-_TAIL_LINES:])


def reasons(log: Path, begin: int) -> list[str]:
    """The first exceptions that the server's processes reported after a place in the log, each once.

    When a worker fails, vLLM's other processes fill the end of the log with exceptions of their own, which
    say only that it failed.

    Args:
        begin: in bytes; where the log of the server's last start begins.
    """
    if not log.exists():
        return []
    found = (_REASON.match(line) for line in _lines(log, min(_SEARCHED_BYTES, log.stat().st_size - begin)))
    told = dict.fromkeys(match[1] for match in found if match is not None and _ECHO not in match[1])
    return list(told)[:_MOST_REASONS]


def _lines(log: Path, most_bytes: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read().decode("utf-8", errors="replace").splitlines()
