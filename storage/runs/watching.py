"""Looking at a run without touching it: whether a process works on it, and whether it has changed."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from storage.filesystem import StoreRoot
from storage.runs.locks import collection_file

_LOCKS = Path("/proc/locks")
"""The kernel's list of locks; only Linux has it."""


@dataclass(frozen=True)
class Holder:
    """The process that works on a run."""

    pid: int
    host: str


def run_holder(root: StoreRoot, name: str) -> Holder | None:
    """The process of this machine that holds a run; None if none does.

    The lock is not taken, not even for a moment: a process that wants to begin must not be refused because
    another one looks. Holders on other machines, which an object store may have, are not seen.
    """
    path = root.scratch / "runs" / name / "lock"
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        inode = path.stat().st_ino
        holder = Holder(int(written["pid"]), str(written["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    held = _is_locked(inode) if _LOCKS.exists() else _is_alive(holder)
    return holder if held else None


def run_mark(root: StoreRoot, name: str) -> tuple[int, ...] | None:
    """Changes whenever a line is added to a run's ledger, and whenever files of the store are collected.

    None for an object store, where changes cannot be seen without reading the ledger.
    """
    if not root.local:
        return None
    # A process that deletes files writes its id into the lock file.
    return *_size_and_time(root.join("runs", name, "ledger.jsonl")), *_size_and_time(collection_file(root))


def _size_and_time(path: str | Path) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _is_locked(inode: int) -> bool:
    # `1: FLOCK  ADVISORY  WRITE 4242 fe:00:123456 0 EOF`; a line with `->` waits for a lock.
    for line in _LOCKS.read_text(encoding="ascii").splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rsplit(":", 1)[-1] == str(inode):
            return True
    return False


def _is_alive(holder: Holder) -> bool:
    if holder.host != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
