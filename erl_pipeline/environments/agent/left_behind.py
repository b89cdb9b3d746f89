"""Ends what agents' commands leave behind when the process that started them is killed.

It is also a program of the standard library alone, which that process tells the folders of the commands that
are under way. The pipe between both closes when the process ends, in whatever way. Then the processes that
work for these folders are killed, and the folders removed. One program serves all commands, so it costs an
agent's start nothing.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASK_FILE = "task.json"
"""In the folder of each command; its variable ERL_TASK_FILE, which all that it starts inherits, names it."""

_LOOKS = 5
_LOOK_SECONDS = 0.2


class _Witness:
    """The program, and the pipe to it."""

    def __init__(self) -> None:
        self._telling = threading.Lock()
        # A session of its own: Ctrl-C in a terminal must not end it before its owner.
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, start_new_session=True
        )

    def tell(self, sign: str, folder: str) -> None:
        assert self._process.stdin is not None
        # Where somebody has killed the program, agents are played as before.
        with self._telling, suppress(BrokenPipeError):
            self._process.stdin.write(f"{sign}{folder}\n".encode())
            self._process.stdin.flush()


@functools.cache
def _witness(owner: int) -> _Witness:
    """That of the process `owner`, which is this one: a forked one needs its own."""
    return _Witness()


@contextmanager
def removed_with_this_process(folder: str) -> Iterator[None]:
    """Where this process is killed within the block, the command of the folder is killed, with all that it
    has started, and the folder is removed."""
    witness = _witness(os.getpid())
    witness.tell("+", folder)
    try:
        yield
    finally:
        witness.tell("-", folder)


def kill_those_that_work_for(folders: Iterable[str]) -> None:
    """Kill the processes whose environment names one of the folders, wherever they were started; on Linux."""
    named = {f"ERL_TASK_FILE={Path(folder, TASK_FILE)}".encode() for folder in folders}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if not named.isdisjoint((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)


def main() -> None:
    folders = set[str]()
    for line in sys.stdin:
        change = folders.add if line[0] == "+" else folders.discard
        change(line[1:].rstrip("\n"))
    # More than once: a process may be about to start.
    for _ in range(_LOOKS if folders else 0):
        kill_those_that_work_for(folders)
        time.sleep(_LOOK_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
