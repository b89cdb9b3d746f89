"""Taking records out of the log of a policy that serves."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.errors import RunBusy, store_errors
from storage.filesystem import sync_folder
from storage.serving.traffic import ReadTraffic, Record, read_traffic, serving_folder


def is_being_written(path: Path) -> bool:
    """Whether a server has a segment open."""
    try:
        with _closed_segment(path):
            return False
    except RunBusy:
        return True


def rewrite_segment(path: Path, keeps: Callable[[Record], bool]) -> None:
    """Leave only some records in a segment, as they were written.

    What a kill cut short goes too: nobody can tell whose it was. Readers see the old or the new segment as a
    whole, and one that has no records any more is removed.

    Raises RunBusy while a server writes to it, DamagedRecord as `read_traffic` does.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with _closed_segment(path), store_errors("write", path):
        with path.open("rb") as lines, beside.open("xb") as file:
            # A line that was cut short is the last one, and gives no record.
            for line, record in zip(lines, read_traffic([path], ReadTraffic()), strict=False):
                if keeps(record):
                    file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if beside.stat().st_size:
            beside.replace(path)
        else:
            path.unlink()
            beside.unlink()
        sync_folder(path.parent)


def half_rewritten(store_uri: str, run: str) -> list[Path]:
    """What killed rewritings left beside the segments."""
    folder = serving_folder(store_uri, run) / "log"
    return sorted(folder.glob(".*.jsonl.*")) if folder.exists() else []


@contextmanager
def _closed_segment(path: Path) -> Iterator[None]:
    # To be written, although nothing is: NFS locks a file alone only where it is open for that.
    with store_errors("lock", path), path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusy(
                f"a server is writing to {path}. Stop that server, then run the same command again."
            ) from None
        yield
