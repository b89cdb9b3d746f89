"""Checks whether a store can be written, locked and read, by trying it; nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from command_line.doctor.finding import Finding, gigabytes
from storage.errors import StoreError
from storage.filesystem import StoreRoot, existing_folder, open_root, read_bytes, store_errors, write_new
from storage.runs.run import RunStore
from storage.wording import counted

DEFAULT_RUN_BYTES = 0.5e9
"""Disk space that the default configuration needs, with some to spare."""
ROOM_FOR_A_MODEL_BYTES = 20e9
"""With less free space, a run with a language model soon fills the disk: checkpoints hold optimizer state."""


def check_store(uri: str) -> list[Finding]:
    """Findings on the store at a folder or URI: its runs, writing, locks and the disk under it.

    Files are written and removed again; a folder that does not exist is not left behind.
    """
    try:
        root = open_root(uri)
        place = existing_folder(root.scratch)
        return [_runs(uri), _writing(root, place), _locks(place), _disk(place)]
    except StoreError as error:
        return [Finding("store", "problem", f"{uri}: {error}", "choose another store with --store")]


def _runs(uri: str) -> Finding:
    names = RunStore(uri).list()
    if not names:
        return Finding("store", "ok", f"{uri}: no run yet")
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return Finding("store", "ok", f"{uri}: {counted(len(names), 'run')}, {shown}")


def _writing(root: StoreRoot, place: Path) -> Finding:
    """Try what a commit does: write a file that must not exist, refuse to write it again, read it back."""
    name = f".doctor-{secrets.token_hex(8)}"
    if root.local:
        with store_errors("write", root.path):
            folder = Path(tempfile.mkdtemp(prefix=name, dir=place))
        try:
            good = _is_kept(root, str(folder / "probe"))
        finally:
            shutil.rmtree(folder)
    else:
        path = root.join(name)
        try:
            good = _is_kept(root, path)
        finally:
            with store_errors("write", path):
                if root.fs.exists(path):
                    root.fs.rm_file(path)
    if good:
        return Finding("store, writing", "ok", "files are written whole, and never over one another")
    return Finding(
        "store, writing",
        "problem",
        "a file that was written did not come back, or could be written over",
        "choose another store: commits would not be safe in this one",
    )


def _is_kept(root: StoreRoot, path: str) -> bool:
    first, again = write_new(root, path, b"kept"), write_new(root, path, b"lost")
    return first and not again and read_bytes(root, path) == b"kept"


def _locks(place: Path) -> Finding:
    """Whether a second lock on a file is refused while the first is held: that gives a run to one process."""
    with store_errors("lock", place), tempfile.NamedTemporaryFile(prefix=".doctor-", dir=place) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second = os.open(file.name, os.O_RDWR)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Finding("store, locks", "ok", f"work, in {place}")
        finally:
            os.close(second)
    return Finding(
        "store, locks",
        "warning",
        f"have no effect in {place}",
        "never let two processes work on one run here, or choose a store on another file system",
    )


def _disk(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    found = f"{gigabytes(free)} free at {place}"
    if free < DEFAULT_RUN_BYTES:
        advice = f"the default configuration needs {gigabytes(DEFAULT_RUN_BYTES)}: free some space"
        return Finding("disk", "problem", found, advice)
    if free < ROOM_FOR_A_MODEL_BYTES:
        advice = "enough for the tiny policy; checkpoints of a language model keep up to 14 bytes a weight"
        return Finding("disk", "warning", found, advice)
    return Finding("disk", "ok", found)
