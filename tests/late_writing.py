"""Slow disks, for files that are written beside the stages that come next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from storage.artifacts.late_files import LateFiles

Begin = Callable[[LateFiles, Mapping[Path, Iterable[memoryview]]], None]


def slowed(wait: Callable[[], object]) -> Begin:
    """What takes the place of `LateFiles.begin`: it calls `wait` after each part of a file."""
    begin = LateFiles.begin

    def slow(parts: Iterable[memoryview]) -> Iterator[memoryview]:
        for part in parts:
            yield part
            wait()

    return lambda late, files: begin(late, {path: slow(parts) for path, parts in files.items()})
