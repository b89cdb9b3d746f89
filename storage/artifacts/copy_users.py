"""Which copies of artifacts the processes of this machine use.

Each store object that uses copies has a file in a folder. The file lists the names of the copies, and is
locked as long as the process lives. The kernel drops the lock when the process dies, however it dies; then
the file counts no longer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from collections import Counter
from collections.abc import Iterable
from pathlib import Path


class CopyUsers:
    """One store object among the users of the copies. The caller of every method holds a lock that keeps out
    other threads and other processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._used: Counter[str] = Counter()
        self._descriptor: int | None = None

    def add(self, name: str) -> None:
        """Count one more use of a copy by this object."""
        self._used[name] += 1
        if self._used[name] == 1:
            os.write(self._file(), f"{name}\n".encode())

    def release(self, names: Iterable[str]) -> None:
        """Count one use less of each of these copies."""
        self._used.subtract(names)
        self._used = +self._used
        os.ftruncate(self._file(), 0)
        os.write(self._file(), "".join(f"{name}\n" for name in self._used).encode())

    def used_by_any(self) -> set[str]:
        """Names of the copies in use on this machine, also by this object. Files of dead processes are
        removed."""
        used: set[str] = set()
        for path in self._folder.glob("*"):
            with path.open("rb") as file:
                if try_lock(file.fileno()):
                    path.unlink(missing_ok=True)
                else:
                    used.update(file.read().decode().split())
        return used

    def _file(self) -> int:
        """Descriptor of this object's locked file, which is created at the first use."""
        if self._descriptor is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / secrets.token_hex(8)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            weakref.finalize(self, _end_use, self._descriptor, path, os.getpid())
        return self._descriptor


def try_lock(descriptor: int) -> bool:
    """Lock a file; False if another process or another descriptor has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_use(descriptor: int, path: Path, process: int) -> None:
    if os.getpid() == process:  # not in a process that was forked from it
        path.unlink(missing_ok=True)
    os.close(descriptor)
