"""Ranks that are killed, fail, or lose the process that they belong to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from erl_pipeline.trainers.fsdp2 import Fsdp2TrainerConfig, rank_group
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from erl_pipeline.trainers.fsdp2.work import Save
from storage.errors import PipelineError
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.trainers.fsdp2.nodes import ranks_below
from tests.erl_pipeline.trainers.fsdp2.rows import Start, reinforcement
from tests.erl_pipeline.trainers.fsdp2.stopped import EndlessStage, is_there
from tests.waiting import wait_for


def has_stepped(scratch: Path) -> bool:
    """Whether rank 1 has taken a step."""
    logs = scratch.glob("fsdp2-*/logs/ranks_*/attempt_0/1/stderr.log")
    return any("step 1," in log.read_text() for log in logs)


@contextmanager
def striking_at_first_step(scratch: Path, strike: Callable[[psutil.Process], None]) -> Iterator[list[float]]:
    """Strike rank 1 after its first step; the list then has the moment, by `time.monotonic()`."""
    struck: list[float] = []

    def wait_and_strike() -> None:
        wait_for("the first step of rank 1", lambda: has_stepped(scratch))
        strike(ranks_below(os.getpid(), scratch)["1"])
        struck.append(time.monotonic())

    striker = threading.Thread(target=wait_and_strike)
    striker.start()
    yield struck
    striker.join()


def test_a_rank_that_is_killed_fails_its_stage_at_once_and_nothing_is_committed(
    first: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    stage = EndlessStage(bench, Fsdp2TrainerConfig(processes=2), first / "llama")
    scratch = bench.resources.scratch
    with (
        striking_at_first_step(scratch, psutil.Process.kill) as killed,
        pytest.raises(PipelineError, match=r"rank 1 of 2 .* was ended by SIGKILL(.|\n)*\nstep \d+, loss "),
    ):
        stage.compute()
    # A rank that is left alone would wait for half an hour.
    assert time.monotonic() - killed[0] < 60.0
    assert not ranks_below(os.getpid(), scratch)
    assert not stage.committed()
    (folder,) = scratch.glob("fsdp2-*")
    assert [path.name for path in folder.iterdir()] == ["logs"]


def test_a_launcher_that_does_not_answer_in_time_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_group, "_CONNECT_SECONDS", 0.01)  # torch takes longer to import
    with pytest.raises(PipelineError, match=r"has not answered within 0\.01 s; is this machine too busy"):
        RankGroup(2, 1, tmp_path)
    assert not ranks_below(os.getpid(), tmp_path)


def test_a_rank_waits_no_longer_for_the_others_than_the_settings_say(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a rank that works may be seconds behind the other."""
    monkeypatch.setattr(rank_group, "_LOST_CONNECTION_SECONDS", 1.0)  # the stopped rank will say nothing
    bench = Bench(tmp_path, {"timeout_seconds": 8.0})
    stage = EndlessStage(bench, Fsdp2TrainerConfig(processes=2), first / "llama")
    with (
        striking_at_first_step(bench.resources.scratch, psutil.Process.suspend) as stopped,
        pytest.raises(PipelineError, match=r"rank 0 of 2 (.|\n)*[Tt]imed out"),
    ):
        stage.compute()
    assert 8.0 <= time.monotonic() - stopped[0] < 60.0


def test_ranks_are_told_to_add_in_a_fixed_order(tmp_path: Path) -> None:
    group = RankGroup(1, 1, tmp_path, deterministic=True)
    try:
        found: dict[str, str] = {}

        def has_begun() -> bool:
            for rank in ranks_below(os.getpid(), tmp_path).values():
                found.update(rank.environ())
            return bool(found)

        wait_for("the rank", has_begun)
        assert found["ERL_PIPELINE_DETERMINISTIC"] == "1"
        assert found["ERL_PIPELINE_TIMEOUT_SECONDS"] == "1800.0"
    finally:
        group.end()


@pytest.mark.usefixtures("quick_ranks")
def test_a_run_that_is_stopped_ends_its_ranks(first: Path, start: Start, tmp_path: Path) -> None:
    group = RankGroup(1, 1, tmp_path / "scratch")
    processes = list[int]()

    def stop(step: int, loss: float) -> None:
        processes.extend(group.process_ids.values())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Fsdp2Trainer(1, start(first / "llama"), group).reinforce(reinforcement(epochs=1000), stop)
    assert len(processes) == 1
    assert not any(is_there(process) for process in processes)
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.usefixtures("quick_ranks")
def test_a_rank_that_fails_is_named_with_its_last_lines(tmp_path: Path) -> None:
    group = RankGroup(2, 1, tmp_path)
    with pytest.raises(PipelineError, match=r"rank [01] of 2 .* failed \(.*begin.*\)(.|\n)*Traceback"):
        group.do(Save(tmp_path / "checkpoint"))


def test_ranks_end_with_the_process_that_they_belong_to(tmp_path: Path) -> None:
    code = """
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
group = RankGroup(2, 1, Path(sys.argv[1]))
print("begun", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdin=pipe, stdout=pipe, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "begun\n"
        wait_for("two ranks", lambda: len(ranks_below(owner.pid)) == 2)
        ranks = ranks_below(owner.pid)
        processes = [each.pid for each in psutil.Process(owner.pid).children(recursive=True)]
        assert len(processes) == 3  # and the launcher
        assert {each.pid for each in ranks.values()} < set(processes)
        owner.kill()
    wait_for("the end of the ranks", lambda: not any(map(is_there, processes)), patience=60.0)
