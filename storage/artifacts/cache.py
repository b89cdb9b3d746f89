"""Copies of an object store's artifacts on this machine, which all its processes share.

Layout: `SCRATCH/copies/<name>/` is a copy. `<name>.lock` beside it holds the number of bytes that the copy
takes; the lock file's modification time is the time of the copy's last use. Whoever writes a copy holds its
lock, so that one process downloads and the others wait. The kernel drops the lock when the process dies,
however it dies. `users/` says who uses which copies: see `CopyUsers`.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from storage.artifacts.layout import StagingFolder, remove_abandoned
from storage.errors import store_errors


class CopyUsers:
    """One store object among the users of the copies on this machine.

    Each has a file in a folder, which lists the names of the copies, and is locked as long as the process
    lives. The kernel drops the lock when the process dies, however it dies; then the file counts no longer.
    The caller of every method holds a lock that keeps out other threads and other processes.
    """

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


COPIES = "copies"
"""Folder, in a scratch folder, of the copies."""
USERS, LOCK = "users", ".lock"

_GATE = "gate"
_READERS: ContextVar[tuple[_Reader, ...]] = ContextVar("readers", default=())
"""The blocks of `LocalCache.reading` that are open in the current thread or asyncio task."""


@dataclass(frozen=True)
class CacheSettings:
    """How much of an object store is kept on this machine, and how it is fetched.

    `limit_bytes`: most bytes of copies. To stay within it, copies that nobody uses are removed, the least
    recently used first; None for no limit. `connections`: parts of files that each process transfers at the
    same time.
    """

    limit_bytes: int | None = None
    connections: int = 8


@dataclass
class _Reader:
    cache: LocalCache
    names: set[str] = field(default_factory=set)


class LocalCache:
    """The copies in a scratch folder, as one store object sees them. Several threads may use it."""

    def __init__(self, scratch: Path, staging: Path, settings: CacheSettings) -> None:
        self.settings = settings
        self._folder = scratch / COPIES
        self._staging = staging
        self._always = _Reader(self)
        self._users = CopyUsers(self._folder / USERS)
        self._marks: dict[str, tuple[int, int] | None] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A copy whose first use is within the block may be removed after it to make room; all other copies
        stay as long as this object. A block belongs to one thread or asyncio task; blocks may be nested."""
        reader = _Reader(self)
        token = _READERS.set((*_READERS.get(), reader))
        try:
            yield
        finally:
            _READERS.reset(token)
            if reader.names:
                with self._gate():
                    self._users.release(reader.names)
                    self._make_room(0)

    @contextmanager
    def staying(self) -> Iterator[None]:
        """A copy whose first use is within the block stays as long as this object, also inside `reading`."""
        token = _READERS.set(())
        try:
            yield
        finally:
            _READERS.reset(token)

    def find(self, name: str) -> Path | None:
        """The copy, if there is one, in use from now on; its bytes are not verified."""
        with self._gate():
            return self._use(name) if (self._folder / name).is_dir() else None

    def used_before(self, name: str) -> Path | None:
        """The copy that this object got earlier, in use again; None if it was removed or replaced."""
        if name in self._reader().names:
            return self._folder / name
        with self._gate():
            if name not in self._marks or self._mark(name) != self._marks[name]:
                return None
            return self._use(name)

    def get(self, name: str, size: int, fetch: Callable[[Path], None], whole: Callable[[Path], bool]) -> Path:
        """A copy, in use from now on: the one that is there if it is `whole`, else what `fetch` writes.

        Args:
            size: bytes that the copy takes.
            fetch: writes the copy into an empty folder; its exceptions propagate.
            whole: says whether the copy in a folder is complete and undamaged.

        Raises StoreError when this machine's disk cannot be written.
        """
        while True:
            seen = self._mark(name)
            found = self.find(name)
            if found is not None and whole(found):
                return found
            with self._written(name, size):
                # Another process may have written it while this one waited for the lock.
                if self._mark(name) != seen:
                    continue
                with self._gate():
                    self._make_room(size, but=name)
                remove_abandoned(self._staging)
                with StagingFolder(self._staging) as staging:
                    fetch(staging.path)
                    with self._gate():
                        self._drop_files(name)
                        return self._place(staging.path, name)

    def put(self, name: str, size: int, folder: Path) -> Path | None:
        """Make a written folder the copy, in use from now on; None, and nothing moved, if there is a copy."""
        with self._written(name, size):
            if (self._folder / name).is_dir():
                return None
            with self._gate():
                self._make_room(size, but=name)
                return self._place(folder, name)

    def forget(self, beginning: str) -> None:
        """Remove the copies whose names begin with `beginning`, unless somebody uses them."""
        for folder in self.unused():
            if folder.name.startswith(beginning):
                with self._gate():
                    if folder.name not in self._users.used_by_any():
                        self._drop(folder.name)

    def unused(self) -> list[Path]:
        """Folders of the copies that no process of this machine uses."""
        if not self._folder.is_dir():
            return []
        with self._gate():
            used = self._users.used_by_any()
            return [self._folder / name for name in self._names() if name not in used]

    # The caller of these holds the gate:

    def _place(self, folder: Path, name: str) -> Path:
        """Nothing is flushed to the disk: what a crash leaves half-written is detected by its digest."""
        with store_errors("write", self._folder):
            folder.rename(self._folder / name)
        return self._use(name)

    def _use(self, name: str) -> Path:
        reader = self._reader()
        if name not in reader.names:
            reader.names.add(name)
            self._users.add(name)
        self._marks[name] = self._mark(name)
        with suppress(FileNotFoundError):
            os.utime(self._folder / f"{name}{LOCK}")
        return self._folder / name

    def _make_room(self, size: int, but: str = "") -> None:
        """Remove copies until `size` more bytes are within the limit, or all that are left are in use. A copy
        that is being downloaded counts with its full size."""
        limit = self.settings.limit_bytes
        if limit is None:
            return
        sizes = {name: found for name in self._names() if (found := self._size(name)) is not None}
        total = sum(taken for name, (_, taken) in sizes.items() if name != but)
        used = self._users.used_by_any() | {but}
        for name in sorted(sizes, key=lambda each: sizes[each]):
            if total + size <= limit:
                return
            if name not in used and self._drop(name):
                total -= sizes[name][1]

    def _drop(self, name: str) -> bool:
        """Remove a copy; False where it is being written."""
        with self._try_lock(name) as locked:
            if locked:
                self._drop_files(name)
                (self._folder / f"{name}{LOCK}").unlink(missing_ok=True)
            return locked

    def _drop_files(self, name: str) -> None:
        """The copy vanishes in one step, by a rename, even if the deletion of its files is interrupted."""
        with StagingFolder(self._staging) as trash, suppress(FileNotFoundError):
            (self._folder / name).rename(trash.path / name)

    def _names(self) -> list[str]:
        return sorted(path.name.removesuffix(LOCK) for path in self._folder.glob(f"*{LOCK}"))

    def _size(self, name: str) -> tuple[float, int] | None:
        """The time of a copy's last use, and the bytes that it takes or will take; None for a copy that a
        dead process had begun to write."""
        path = self._folder / f"{name}{LOCK}"
        try:
            found = path.stat().st_mtime, int(path.read_text() or 0)
        except FileNotFoundError:
            return None
        if not (self._folder / name).is_dir() and self._drop(name):
            return None
        return found

    # Locks:

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """A short lock for changes of which copies are in use or exist."""
        with store_errors("lock", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / _GATE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _written(self, name: str, size: int) -> Iterator[None]:
        """Hold the lock of a copy, and write into it how large the copy will be; waits for another writer."""
        path = self._folder / f"{name}{LOCK}"
        while True:
            with store_errors("lock", path):
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                # Where the file was removed while this process waited, others lock a new one.
                if os.fstat(descriptor).st_nlink:
                    with store_errors("write", path):
                        os.ftruncate(descriptor, 0)
                        os.pwrite(descriptor, str(size).encode(), 0)
                    try:
                        yield
                        return
                    finally:
                        if not (self._folder / name).is_dir():
                            path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)

    @contextmanager
    def _try_lock(self, name: str) -> Iterator[bool]:
        """Whether this process has the lock of a copy, within the block."""
        try:
            descriptor = os.open(self._folder / f"{name}{LOCK}", os.O_RDWR)
        except FileNotFoundError:
            yield True
            return
        try:
            yield try_lock(descriptor)
        finally:
            os.close(descriptor)

    def _reader(self) -> _Reader:
        return next((each for each in reversed(_READERS.get()) if each.cache is self), self._always)

    def _mark(self, name: str) -> tuple[int, int] | None:
        """Inode and time of change, which tell a copy from a later one in its place; None without a copy."""
        try:
            found = (self._folder / name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns
