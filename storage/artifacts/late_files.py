"""Files of an artifact that are still being written when the stage that makes it has ended.

Such a file has its name from the beginning, and its writer, a thread of the process that computed the stage,
holds a lock on it. Whoever needs the file waits for the lock. The kernel drops it when the writer dies. A
file is whole if it then has the size that its writer told beforehand.
"""

import fcntl
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from storage.errors import StoreError, store_errors
from storage.filesystem import open_to_write

_FAILED = b"not whole: "
"""How a file begins that could not be written; the reason follows."""
_MOST_REASON = 2000


class LateFiles:
    """Writes files in a thread, one after the other; as a context manager it waits for the last one."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="late-files")
        self._last: Future[None] | None = None

    def begin(self, files: Mapping[Path, Iterable[memoryview]]) -> None:
        """Make files and write these bytes into them, in the thread; they must not change until `wait` has
        returned. Raises StoreError if a file cannot be made."""
        self.wait()
        opened = []
        for path, parts in files.items():
            with store_errors("write", path):
                file = open_to_write(path, "wb")
            fcntl.flock(file, fcntl.LOCK_EX)
            opened.append((file, path, parts))
        if opened:
            self._last = self._thread.submit(_write_all, opened)

    def wait(self) -> None:
        """Wait until nothing is being written. Raises what the writing raised."""
        if self._last is not None:
            self._last.result()

    def end(self) -> None:
        """Wait until nothing is being written, and end the thread. Whoever needs a file finds out whether it
        could be written."""
        self._thread.shutdown()

    def __enter__(self) -> "LateFiles":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


def _write_all(files: Sequence[tuple[IO[bytes], Path, Iterable[memoryview]]]) -> None:
    """Write one after the other. If one fails, those after it are closed as they are, which is not whole."""
    with ExitStack() as open_files:
        for file, _, _ in files:
            open_files.enter_context(file)
        for file, path, parts in files:
            _write(file, path, parts)


def _write(file: IO[bytes], path: Path, parts: Iterable[memoryview]) -> None:
    with file:
        try:
            with store_errors("write", path):
                for part in parts:
                    left = part
                    while left:
                        left = left[os.write(file.fileno(), left) :]
        except BaseException as error:
            # For whoever waits, who may be another process. What was written makes room for it.
            reason = str(error) if isinstance(error, StoreError) else f"cannot write {path}: {error!r}"
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), _FAILED + reason.encode()[:_MOST_REASON], 0)
            raise
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


class WatchedFiles:
    """Late files of another process, which is to live until they are written. They may be moved meanwhile."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def watch(self, paths: Iterable[Path]) -> None:
        """Watch these files too, which exist. Raises StoreError."""
        self.forget_written()
        for path in paths:
            with store_errors("read", path):
                self._files.append(path.open("rb"))

    def forget_written(self) -> None:
        """Watch only what is being written: a file that is open takes room on the disk, also when it was
        removed."""
        still = []
        for file in self._files:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                still.append(file)
            else:
                file.close()
        self._files = still

    def wait(self) -> None:
        """Wait until no file is being written: it is whole, its writer has failed, or has died."""
        while self._files:
            with self._files.pop() as file:
                fcntl.flock(file, fcntl.LOCK_SH)


def wait_until_whole(path: Path, size: int) -> None:
    """Wait until a file is written. Raises StoreError if its writer failed or died."""
    with store_errors("read", path), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        found, is_whole = file.read(len(_FAILED) + _MOST_REASON), os.fstat(file.fileno()).st_size == size
    if found.startswith(_FAILED):
        raise StoreError(found.removeprefix(_FAILED).decode(errors="replace"))
    if not is_whole:
        raise StoreError(
            f"{path} was not written whole: the process that wrote it has ended. Run the same command again."
        )
