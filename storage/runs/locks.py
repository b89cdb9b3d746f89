"""Locks: one process for each run, and no run at work while files are deleted.

In a local store these are the kernel's file locks, which end with the process that held them. In an object
store such a lock excludes the other processes of the same machine, and a lease excludes other machines.
"""

import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.errors import RunBusy, store_errors
from storage.filesystem import (
    StoreRoot,
    make_folder,
    open_lock,
    refuse_linked_path,
    refuse_links_out,
    size_and_time,
)
from storage.runs.lease import LEASE_SECONDS, Lease, LeaseState, hold_lease, lease_state

_COLLECTION = "collection"


@contextmanager
def lock_run(root: StoreRoot, name: str, lease_seconds: float = LEASE_SECONDS) -> Iterator[Lease | None]:
    """Hold a run for this process; gives its lease in an object store, None in a local one.

    Raises RunBusy, which names process and host, when another process holds it or deletes files of the store.
    """

    def busy(holder: str) -> str:
        return (
            f"run {name} is being worked on by {holder}. "
            "Wait for it, stop it, or start another run with another name."
        )

    with (
        _file_lock(root.scratch, root.scratch / "runs" / name / "lock", fcntl.LOCK_EX, busy),
        _file_lock(root.scratch, collection_file(root), fcntl.LOCK_SH, _collecting),
    ):
        _refuse_links(root, name)
        if root.local:
            yield None
            return
        with hold_lease(root, run_lease(root, name), _leased(busy), lease_seconds) as lease:
            # Checked after taking the run's lease: a deleting process takes its own lease first and then
            # checks those of the runs, so at least one of the two sees the other.
            collection = lease_state(root, _collection_lease(root), lease_seconds)
            if collection.held:
                raise RunBusy(_leased(_collecting)(collection))
            yield lease


@contextmanager
def lock_notes(root: StoreRoot, name: str) -> Iterator[None]:
    """Hold the notes of a run, which may be at work, against other processes of this machine.

    Raises RunBusy when another process holds them.
    """

    def busy(holder: str) -> str:
        return f"the notes of run {name} are being written by {holder}. Try again."

    with _file_lock(root.scratch, root.scratch / "runs" / name / "notes.lock", fcntl.LOCK_EX, busy):
        yield


def working_on(root: StoreRoot, name: str) -> str | None:
    """Who works on a run: `process 12 on host`, or the machine that has its lease; None for nobody.

    The check takes a shared lock for a moment.
    """
    path = root.scratch / "runs" / name / "lock"
    if path.exists():
        with store_errors("look at", path), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(path)
    if root.local:
        return None
    state = lease_state(root, run_lease(root, name))
    return state.holder if state.held else None


@contextmanager
def lock_collection(
    root: StoreRoot, list_runs: Callable[[], list[str]], lease_seconds: float = LEASE_SECONDS
) -> Iterator[Callable[[], None]]:
    """Prevent work on any run of the store while files are deleted.

    Gives what has to be called before each removal: it raises RunBusy once another machine has taken over,
    and does nothing in a local store.

    Args:
        list_runs: gives the names of all runs. It is called when the lease is taken: whoever begins a run
            after that sees the lease.

    Raises RunBusy when a run is worked on, or when another process deletes files.
    """

    def busy(holder: str) -> str:
        return (
            f"files can be deleted only while no run of this store is worked on, and {holder} is at work. "
            "Try again when it has ended."
        )

    with _file_lock(root.scratch, collection_file(root), fcntl.LOCK_EX, busy):
        _refuse_links(root)
        if root.local:
            yield lambda: None
            return
        with hold_lease(root, _collection_lease(root), _leased(_collecting), lease_seconds) as lease:
            for run in list_runs():
                state = lease_state(root, run_lease(root, run), lease_seconds)
                if state.held:
                    raise RunBusy(
                        f"files can be deleted only while no run is worked on, and {state.holder} works on "
                        f"run {run}. If that machine is gone, the run is free in {state.seconds_left:.0f} s."
                    )
            yield lease.require


def run_lease(root: StoreRoot, name: str) -> str:
    """The folder of a run's lease."""
    return root.join("runs", name, "lease")


def _collection_lease(root: StoreRoot) -> str:
    return root.join(_COLLECTION, "lease")


def collection_file(root: StoreRoot) -> Path:
    """The lock file, on this machine, that a deleting process locks alone and runs at work share."""
    return root.scratch / f"{_COLLECTION}.lock"


def _collecting(holder: str) -> str:
    return f"files of this store are being deleted by {holder}. Try again when it has ended."


def _leased(busy: Callable[[str], str]) -> Callable[[LeaseState], str]:
    def message(state: LeaseState) -> str:
        return f"{busy(state.holder)} If that machine is gone, it is free in {state.seconds_left:.0f} s."

    return message


def _refuse_links(root: StoreRoot, run: str | None = None) -> None:
    """Raise StoreError for links in the folders that work on a run, or deleting files, writes in."""
    base = root.scratch
    artifacts = base / "artifacts"
    stages = list(artifacts.iterdir()) if artifacts.is_dir() else []
    refuse_links_out(base, [base, artifacts, *stages], deep=False)
    if run is not None:
        refuse_links_out(base, [base / "runs" / run, base / "memory" / run])


@contextmanager
def _file_lock(base: Path, path: Path, kind: int, busy: Callable[[str], str]) -> Iterator[None]:
    refuse_linked_path(base, path)
    with store_errors("lock", path):
        make_folder(path.parent)
        descriptor = open_lock(path)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(busy(_holder(path))) from None
        # Several holders of a shared lock overwrite each other: the file names the last one.
        with store_errors("lock", path):
            os.ftruncate(descriptor, 0)
            me = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
            os.pwrite(descriptor, me.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    """The holder that the lock file names; for a moment after locking it may name nobody yet."""
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError):
        return "another process"


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
    """Changes with a run's settings and ledger, and whenever files of the store are collected.

    None for an object store, where changes cannot be seen without reading the ledger.
    """
    if not root.local:
        return None
    # A process that deletes files writes its id into the lock file.
    settings, ledger = (root.join("runs", name, file) for file in ("run.json", "ledger.jsonl"))
    found = (size_and_time(path) or (0, 0) for path in (settings, ledger, collection_file(root)))
    return tuple(number for each in found for number in each)


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
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
