"""Commands in processes that kill themselves right before one of their changes of a store's files."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from storage.artifacts.artifact import PRUNED, is_half_record
from storage.artifacts.manifest import MANIFEST
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.forked import forking

_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_UNSHOWN = frozenset({MANIFEST, PRUNED})
"""Files that hold times."""


def run_killed(words: list[str], folder: Path, at: int = 0) -> int:
    """Run a command that kills itself with SIGKILL before its `at`-th change of a file in a folder; with 0 it
    runs to its end. Returns how many changes it began.

    Raises AssertionError when a command that was not killed fails.
    """
    context = forking()
    begun: Synchronized[int] = context.Value("i", 0)
    process = context.Process(target=_run, args=(words, str(folder), at, begun))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if 0 < at <= begun.value else 0), (words, process.exitcode)
    return begun.value


def _run(words: list[str], folder: str, at: int, begun: Synchronized[int]) -> None:
    def change(*_: object) -> None:
        begun.value += 1
        if begun.value == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITING and _is_within(path, folder):
                change()
        elif event in _CHANGES and _is_within(arguments[0], folder):
            change()

    synced = os.fsync

    def sync(descriptor: int) -> None:
        change()
        synced(descriptor)

    devices = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devices, 1)
    os.dup2(devices, 2)
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.argv = ["erl-pipeline", *words]
    from command_line.main import main

    setattr(os, "fsync", sync)  # noqa: B010 - Python announces all other changes to audit hooks.
    sys.addaudithook(hook)
    status = 0
    try:
        main()
    except SystemExit as end:
        status = int(end.code or 0)
    os._exit(status)


def _is_within(path: object, folder: str) -> bool:
    """Whether a path is in the folder; a relative one is, since `shutil.rmtree` names files within theirs."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    text = os.fsdecode(path)
    return text.startswith(folder) or not text.startswith("/")


def content(store: Path) -> dict[str, Any]:
    """What a store holds: the digests of its artifacts' files, and what each run has at each place."""
    runs = RunStore(str(store))
    # A kill may leave half a record of pruned files, which `gc` removes.
    files = sorted(
        path for path in (store / "artifacts").rglob("*") if path.is_file() and not is_half_record(path.name)
    )
    return {
        "artifacts": {
            str(path.relative_to(store)): None
            if path.name in _UNSHOWN
            else hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        },
        "runs": {
            name: {
                (entry.iteration, entry.stage, entry.key): entry.artifact_id
                for entry in runs.open(name).stages()
            }
            for name in runs.list()
        },
    }


def problems(store: Path) -> list[str]:
    """What `lineage verify` finds in all runs of a store."""
    runs, artifacts = RunStore(str(store)), ArtifactStore(str(store))
    return [each for name in runs.list() for each in verify_run(artifacts, runs.open(name)).problems]
