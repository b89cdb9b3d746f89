"""Folders in which artifacts are written before they are committed."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path

from storage.errors import StoreError
from storage.filesystem import store_errors


class StagingFolder:
    """A new folder under `parent`, locked for as long as its writer lives.

    The kernel drops the lock when the writer dies, however it dies, so that `remove_abandoned` can tell
    a folder in use from one left behind.
    """

    def __init__(self, parent: Path) -> None:
        with store_errors("create a staging folder in", parent):
            parent.mkdir(parents=True, exist_ok=True)
            self.path, self._descriptor = _create_locked(parent)

    def release(self) -> None:
        """Give up the lock; remove the folder if it was not moved away."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def abandoned(parent: Path) -> list[Path]:
    """The staging folders whose writers are dead; changes nothing."""
    found = []
    for folder in sorted(parent.iterdir()) if parent.is_dir() else ():
        descriptor = _try_lock(folder)
        if descriptor is not None:
            os.close(descriptor)
            found.append(folder)
    return found


def remove_abandoned(parent: Path) -> None:
    """Remove the staging folders whose writers are dead."""
    for folder in parent.iterdir() if parent.is_dir() else ():
        descriptor = _try_lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _create_locked(parent: Path) -> tuple[Path, int]:
    for _ in range(10):
        folder = parent / secrets.token_hex(8)
        folder.mkdir()
        descriptor = _try_lock(folder)
        # Before the lock was taken, another process may have removed the new folder as an abandoned one.
        if descriptor is not None:
            if folder.exists():
                return folder, descriptor
            os.close(descriptor)
    raise StoreError(
        f"no staging folder could be kept in {parent}: something immediately removes new folders there"
    )


def _try_lock(folder: Path) -> int | None:
    """A descriptor holding the folder's lock; None where another process has it or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
