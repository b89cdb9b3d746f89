from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from erl_pipeline.runs.certificate.targets import MODULES, targets, writers
from storage.artifacts.staging import StagingFolder
from storage.artifacts.store import ArtifactStore


def test_who_writes_an_artifact_is_found_by_its_open_folder(store: Path) -> None:
    assert writers(store) == set()
    folder = StagingFolder(ArtifactStore(str(store)).staging_folder)
    assert writers(store) == {os.getpid()}
    folder.release()
    assert writers(store) == set()


def test_ranks_and_servers_are_found_below_the_driver(store: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    driver = multiprocessing.get_context("spawn").Process(target=start_both, args=(theirs,))
    driver.start()
    try:
        rank, server, other = ours.recv()
        assert targets(driver, store) == {"rank": [rank], "server": [server]}
        assert other not in (rank, server)
    finally:
        ours.send("end")
        driver.join()


def start_both(line: Connection) -> None:
    """A driver with three processes that wait: two named after a rank and a server, and one more."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    names = [["-m", module] for module in MODULES] + [["-m", "http.server"]]
    processes = [subprocess.Popen([*command, *name], stdin=subprocess.PIPE) for name in names]
    line.send([process.pid for process in processes])
    line.recv()
    for process in processes:
        process.communicate()
