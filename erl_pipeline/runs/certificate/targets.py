"""The processes of a copy that can be killed, besides its driver."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from erl_pipeline.runs.certificate.certificate import Target
from storage.artifacts.store import ArtifactStore

MODULES: Mapping[str, Target] = {
    "erl_pipeline.trainers.fsdp2.rank": "rank",
    "vllm.entrypoints.openai.api_server": "server",
}
"""Modules that the processes of `trainer: fsdp2` and vLLM's servers run."""


def targets(driver: BaseProcess, store: Path) -> dict[Target, list[int]]:
    """Process ids by kind: a `worker` writes an artifact for the driver, a `rank` trains and a `server`
    samples."""
    found: dict[Target, list[int]] = {}
    workers = sorted(pid for pid in writers(store) if pid != driver.pid)
    if workers:
        found["worker"] = workers
    for process in sorted(descendants(driver), key=lambda each: each.pid):
        # It may end meanwhile.
        with suppress(psutil.NoSuchProcess):
            kind = _kind(process.cmdline())
            if kind is not None:
                found.setdefault(kind, []).append(process.pid)
    return found


def writers(store: Path) -> set[int]:
    """Processes of this machine that write an artifact of a store. Each is found by its staging folder, which
    it keeps open to hold the folder's lock."""
    folders = {str(folder) for folder in ArtifactStore(str(store)).staging_folder.glob("*")}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # Processes of other users cannot be inspected, and any process may end meanwhile.
        with suppress(OSError):
            if any(os.readlink(link) in folders for link in (process / "fd").iterdir()):
                found.add(int(process.name))
    return found


def descendants(driver: BaseProcess) -> set[psutil.Process]:
    """The processes that the driver, and those that it has started, have started."""
    with suppress(psutil.NoSuchProcess):
        return set(psutil.Process(driver.pid).children(recursive=True))
    return set()


def _kind(command: Sequence[str]) -> Target | None:
    """The kind of a process that runs one of the modules as `python -m MODULE`."""
    for option, module in pairwise(command):
        if option == "-m" and module in MODULES:
            return MODULES[module]
    return None
