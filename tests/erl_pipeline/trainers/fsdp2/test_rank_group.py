"""Ranks that are killed, fail, or lose the process that they belong to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.fsdp2.work import Save
from storage.errors import PipelineError
from tests.erl_pipeline.trainers.fsdp2.rows import Start, reinforcement
from tests.waiting import wait_for


def is_there(process: int) -> bool:
    """Whether a process is there, and no zombie that waits for its parent to look."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_rank_that_is_killed_ends_the_training_at_once(first: Path, start: Start, tmp_path: Path) -> None:
    group = RankGroup(2, 1, tmp_path / "scratch")
    trainer = Fsdp2Trainer(2, start(first / "llama"), group)
    processes = group.process_ids
    killed: list[float] = []

    def kill_one(step: int, loss: float) -> None:
        if not killed:
            os.kill(processes[1], signal.SIGKILL)
            killed.append(time.monotonic())

    with pytest.raises(PipelineError, match=r"rank 1 of 2 .* was ended by SIGKILL(.|\n)*\nstep 1, loss "):
        trainer.reinforce(reinforcement(epochs=1000), kill_one)
    assert time.monotonic() - killed[0] < 10.0
    assert not any(is_there(process) for process in processes)
    assert not (tmp_path / "model").exists()
    (folder,) = (tmp_path / "scratch").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.log", "rank-1.log"]


def test_a_run_that_is_stopped_ends_its_ranks(first: Path, start: Start, tmp_path: Path) -> None:
    group = RankGroup(1, 1, tmp_path / "scratch")
    processes = group.process_ids

    def stop(step: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Fsdp2Trainer(1, start(first / "llama"), group).reinforce(reinforcement(epochs=1000), stop)
    assert not any(is_there(process) for process in processes)
    assert not list((tmp_path / "scratch").iterdir())


def test_a_rank_that_fails_is_named_with_its_last_lines(tmp_path: Path) -> None:
    group = RankGroup(2, 1, tmp_path)
    with pytest.raises(PipelineError, match=r"rank [01] of 2 .* failed \(.*begin.*\)(.|\n)*Traceback"):
        group.do(Save(tmp_path / "checkpoint"))


def test_ranks_end_with_the_process_that_they_belong_to(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
print(*RankGroup(2, 1, Path(sys.argv[1])).process_ids, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) == 2
        assert all(is_there(process) for process in processes)
        owner.kill()
    wait_for("the end of the ranks", lambda: not any(map(is_there, processes)), patience=20.0)
