"""Leases in an object store: they say which machine may work on something, where no kernel can hold a lock.

A lease is a sequence of numbered objects, `00000001.json`, `00000002.json`, ... The writer of the highest
number holds it. A machine takes the lease by creating the next number, which the store allows to only one
machine (`If-None-Match: *`). It keeps the lease by rewriting its object at intervals. Any machine that finds
the object released, or not rewritten for the lease's duration, may create the next number. Ages are
differences of two times of the store's own clock.
"""

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from storage.errors import RunBusy, StoreError, store_errors
from storage.filesystem import StoreRoot, list_names, open_root, read_bytes, remove, write_new

LEASE_SECONDS = 60.0
"""How long after its last sign of life a machine still counts as working."""

_NUMBERED = re.compile(r"\d{8}\.json")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SIGNS_OF_LIFE = 6
_GIVE_UP = 2 / 3


@dataclass(frozen=True)
class LeaseState:
    """Who holds a lease, and for how many more seconds if it is not renewed; `number` 0: nobody yet."""

    number: int
    holder: str
    seconds_left: float

    @property
    def held(self) -> bool:
        return self.seconds_left > 0


def _seconds_passed() -> float:
    """A clock that also counts while the machine sleeps, which Python's monotonic one does not on Linux."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """A lease that this process holds. A thread renews its object until `release`."""

    def __init__(self, root: StoreRoot, folder: str, number: int, machine: str, seconds: float) -> None:
        self.number = number
        self._machine = machine
        self._root = root
        self._folder = folder
        self._seconds = seconds
        self._renewed = _seconds_passed()
        self._ended = threading.Event()
        self._lost = ""
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise RunBusy when another machine has taken the lease, or when it could not be renewed in time."""
        self._look()
        if self._lost:
            raise RunBusy(self._lost)

    def release(self) -> None:
        """Free the lease immediately for others."""
        self._ended.set()
        self._thread.join()
        # A store that cannot be written now frees the lease by its age.
        with suppress(StoreError):
            if not self._lost:
                self._write(released=True)

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / _SIGNS_OF_LIFE) and not self._lost:
            # One failure does not lose the lease: `_look` measures the time since the last success.
            with suppress(StoreError):
                self._look()
                if not self._lost:
                    self._write(released=False)
                    self._renewed = _seconds_passed()

    def _write(self, *, released: bool) -> None:
        path = _path(self._folder, self.number)
        with store_errors("write", path):
            self._root.fs.pipe_file(path, _content(self._machine, released=released))

    def _look(self) -> None:
        if _highest(self._root, self._folder) > self.number:
            self._lost = (
                "another machine has taken over, because this one did not renew its lease in time. What was "
                "committed is kept; stop one of the two."
            )
        elif _seconds_passed() - self._renewed > self._seconds * _GIVE_UP:
            self._lost = (
                f"this machine's lease could not be renewed for {self._seconds * _GIVE_UP:.0f} seconds, so "
                "another machine may take over. What was committed is kept; run the same command again."
            )


@contextmanager
def hold_lease(
    root: StoreRoot, folder: str, busy: Callable[[LeaseState], str], seconds: float = LEASE_SECONDS
) -> Iterator[Lease]:
    """Hold the lease of a folder of an object store.

    The caller must hold this machine's own lock for the same thing. A lease whose holder ran on this machine
    is then known to be abandoned, and is taken immediately.

    Args:
        busy: gives the message for a lease that another machine holds.

    Raises:
        RunBusy: another machine holds it.
        StoreError: the store cannot be used, or overwrites objects that were only to be created.
    """
    state = lease_state(root, folder, seconds)
    if state.held:
        raise RunBusy(busy(state))
    number, machine = state.number + 1, _machine(root)
    taken = write_new(root, _path(folder, number), _content(machine, released=False), unique=True)
    if not taken or _highest(root, folder) != number:
        raise RunBusy(busy(lease_state(root, folder, seconds)))
    lease = Lease(root, folder, number, machine, seconds)
    try:
        for name in list_names(root, folder):
            if name != _path(folder, number).rsplit("/", 1)[-1] and _NUMBERED.fullmatch(name):
                remove(root, f"{folder}/{name}")
        yield lease
    finally:
        lease.release()


def lease_state(root: StoreRoot, folder: str, seconds: float = LEASE_SECONDS) -> LeaseState:
    """Who holds a lease now. A holder on this machine counts as gone: check this machine's own lock first.

    Raises StoreError when the store cannot be used, or overwrites objects that were only to be created.
    """
    now = _store_time(root, folder)
    number = _highest(root, folder)
    content = read_bytes(root, _path(folder, number)) if number else None
    if content is None:
        return LeaseState(number, "nobody", 0.0)
    try:
        record = json.loads(content)
        holder = f"process {record['pid']} on {record['host']}"
        gone = bool(record["released"]) or record["machine"] == _machine(root)
    except (ValueError, KeyError, TypeError):
        # An unreadable object counts as a lease that is still held.
        holder, gone = "an unknown machine", False
    with store_errors("read", _path(folder, number)):
        age = now - root.fs.modified(_path(folder, number)).timestamp()
    return LeaseState(number, holder, 0.0 if gone else seconds - age)


def _store_time(root: StoreRoot, folder: str) -> float:
    """The store's time in seconds since 1970: the time of an object that is written now. Writing it also
    tests that the store supports conditional writes; without them two machines could hold one lease."""
    path = f"{folder}/clock-{secrets.token_hex(8)}"
    try:
        if not write_new(root, path, b"first\n", unique=True) or write_new(root, path, b"second\n"):
            raise StoreError(
                f"the object store of {root.uri} overwrites objects that were to be created (it ignores "
                "If-None-Match), so two machines could work on one run. Use a store with conditional writes."
            )
        with store_errors("read", path):
            return float(root.fs.modified(path).timestamp())
    finally:
        remove(root, path)


def _content(machine: str, *, released: bool) -> bytes:
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "machine": machine,
        "released": released,
        "written": secrets.token_hex(8),
    }
    return (json.dumps(record) + "\n").encode()


def _machine(root: StoreRoot) -> str:
    """A random name for this machine, kept in its scratch folder, and the id of its boot; host names are not
    unique, and a copy of a machine has its scratch folder too."""
    path = root.scratch / "machine"
    if not path.exists():  # the first of several processes wins
        write_new(open_root(str(root.scratch)), str(path), secrets.token_hex(16).encode())
    with store_errors("read", path):
        name = path.read_text()
    return f"{name} {_BOOT.read_text().strip()}" if _BOOT.exists() else name


def _highest(root: StoreRoot, folder: str) -> int:
    names = [name for name in list_names(root, folder) if _NUMBERED.fullmatch(name)]
    return max((int(name.split(".")[0]) for name in names), default=0)


def _path(folder: str, number: int) -> str:
    return f"{folder}/{number:08d}.json"
