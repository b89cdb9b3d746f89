"""What becomes of an agent's command when the process that started it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.waiting import wait_for

OWNER = """
import os, subprocess, sys
from pathlib import Path
from erl_pipeline.environments.agent.left_behind import TASK_FILE, removed_with_this_process

ended, under_way = sys.argv[1:]
with removed_with_this_process(ended):
    pass
with removed_with_this_process(under_way):
    variables = {**os.environ, "ERL_TASK_FILE": str(Path(under_way, TASK_FILE))}
    command = ["sh", "-c", "setsid sleep 100 & echo $!; wait"]
    subprocess.Popen(command, env=variables, start_new_session=True).wait()
"""
"""Starts a command that starts another one, in a session of its own, and says which."""


def test_it_is_killed_with_all_that_it_has_started_and_its_folder_is_removed(tmp_path: Path) -> None:
    """The folder of a command that has ended before is left to those who made it."""
    ended, under_way = tmp_path / "ended", tmp_path / "under way"
    for folder in (ended, under_way):
        folder.mkdir()
    words = [sys.executable, "-c", OWNER, str(ended), str(under_way)]
    owner = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    started = psutil.Process(int(owner.stdout.readline()))
    command = started.parent()
    assert command is not None
    assert command.ppid() == owner.pid
    owner.kill()
    owner.wait()
    wait_for("the end of both", lambda: not runs(started) and not runs(command), patience=30.0)
    wait_for("the removal", lambda: not under_way.exists(), patience=30.0)
    assert ended.exists()


def runs(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
