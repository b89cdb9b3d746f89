"""A folder that one process at a time uses: its servers read copies of checkpoints that it removes."""

from __future__ import annotations

import fcntl
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.filesystem import open_to_write


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """`folder`, or while another engine of this machine has it, the first of `folder-2`, `folder-3`, ... that
    none has. It is made, and stays for the next one; a killed process has none any more."""
    for number in itertools.count(1):
        place = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        place.mkdir(parents=True, exist_ok=True)
        with open_to_write(place.with_name(f"{place.name}.lock"), "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield place
            return
