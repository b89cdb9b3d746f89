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
        found = path.stat()
        holder = Holder(int(written["pid"]), str(written["host"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    held = _is_locked(found.st_dev, found.st_ino) if _LOCKS.exists() else _is_alive(holder)
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


def _is_locked(device: int, inode: int) -> bool:
    # `1: FLOCK  ADVISORY  WRITE 4242 fe:00:123456 0 EOF`; a line with `->` waits for a lock.
    for line in _LOCKS.read_text(encoding="ascii").splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":
            continue
        locked, _, number = fields[5].rpartition(":")
        if number == str(inode) and not _are_two_disks(locked, device):
            return True
    return False


def _are_two_disks(locked: str, device: int) -> bool:
    """Whether a device in the list of locks, such as `fe:00`, and one that `stat` gave are certainly two file
    systems.

    The list has the device of the mounted file system; `stat` may give another for the same file: on btrfs
    that of the subvolume, on overlayfs that of a layer. And one NFS export that is mounted twice has two.
    Then at least one of the two is no disk, and its major number is 0. Since a run at work must never look
    like one that nobody works on, only two different disks count.
    """
    major, minor = (int(part, 16) for part in locked.split(":"))
    own = os.major(device), os.minor(device)
    return 0 not in (major, own[0]) and (major, minor) != own


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
