"""Ranks that are killed, fail, or lose the process that they belong to."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from erl_pipeline.trainers.fsdp2 import Fsdp2TrainerConfig
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.rank_processes import RANK_MODULE
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.fsdp2.work import Save
from storage.errors import PipelineError
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.trainers.fsdp2.rows import Start, reinforcement
from tests.erl_pipeline.trainers.fsdp2.stopped import EndlessStage, is_there
from tests.waiting import wait_for


def ranks_of(scratch: Path) -> dict[str, psutil.Process]:
    """The running ranks that meet in a folder below this one, by their number. Other tests of this process
    may have ranks too, and child processes that have ended and no longer have a command line."""
    found = {}
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            words = child.cmdline()
            if words[2:3] == [RANK_MODULE] and Path(words[-1]).is_relative_to(scratch):
                found[words[3]] = child
    return found


def test_a_rank_that_is_killed_fails_its_stage_at_once_and_nothing_is_committed(
    first: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    stage = EndlessStage(bench, Fsdp2TrainerConfig(processes=2), first / "llama")
    scratch, killed = bench.resources.scratch, list[float]()

    def has_stepped() -> bool:
        return any("step 1," in log.read_text() for log in scratch.glob("fsdp2-*/rank-1.log"))

    def kill_one() -> None:
        wait_for("the first step of rank 1", has_stepped)
        ranks_of(scratch)["1"].kill()
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(PipelineError, match=r"rank 1 of 2 .* was ended by SIGKILL(.|\n)*\nstep \d+, loss "):
        stage.compute()
    killer.join()
    assert time.monotonic() - killed[0] < 10.0
    assert not ranks_of(scratch)
    assert not stage.committed()
    (folder,) = scratch.glob("fsdp2-*")
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
import sys
from pathlib import Path
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
print(*RankGroup(2, 1, Path(sys.argv[1])).process_ids, flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=pipe, stdout=pipe, text=True
    ) as owner:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) == 2
        assert all(is_there(process) for process in processes)
        owner.kill()
    wait_for("the end of the ranks", lambda: not any(map(is_there, processes)), patience=20.0)
