"""Samples of what a run uses of its machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from functools import partial
from pathlib import Path
from subprocess import Popen

import pytest

from erl_pipeline.runs import machine_use
from erl_pipeline.runs.machine_use import MACHINE_LOG, GpuUse, MachineUse, sampled_machine
from storage.errors import StoreError
from tests.erl_pipeline.runs.small_runs import go, hashes, small
from tests.waiting import wait_for

MIB = 2**20


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_use, "_FIRST_SECONDS", 0.1)
    monkeypatch.setattr(machine_use, "SECONDS", 0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "one").mkdir(parents=True)
    return tmp_path


def samples(folder: Path, run: str = "one") -> list[MachineUse]:
    lines = (folder / "runs" / run / MACHINE_LOG).read_text().splitlines()
    return [MachineUse.model_validate_json(line) for line in lines]


def has_more(folder: Path, than: int) -> bool:
    return len(samples(folder)) > than


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program that stands for the real one."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.mark.usefixtures("often")
def test_the_processes_below_count_with_the_run(folder: Path) -> None:
    """A process that computes all the time takes a part of a processor, and has memory of its own."""
    busy = Popen([sys.executable, "-c", "kept = b'x' * 50_000_000\nwhile True: pass"])
    try:
        with sampled_machine(str(folder), "one"):
            own = machine_use._Processes()._own.memory_info().rss
            wait_for("samples", lambda: len(samples(folder)) >= 10)
        found = samples(folder)
    finally:
        busy.kill()
        busy.wait()
    assert max(each.cores for each in found) > 0.05
    assert found[-1].memory > own + 40e6
    assert all(each.machine_memory > 0 and not each.gpus for each in found)
    assert not [each for each in threading.enumerate() if each.name == "machine use"]


@pytest.mark.usefixtures("often")
def test_gpus_are_those_that_the_process_may_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'echo "37, 1024"; case "$*" in *--id=0) ;; *) echo "0, 16";; esac'
    nvidia_smi(folder, monkeypatch, script)
    first, second = GpuUse(share=0.37, memory=1024 * MIB), GpuUse(share=0.0, memory=16 * MIB)
    for visible, expected in ((None, (first, second)), ("0", (first,)), ("", ())):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        before = len(samples(folder)) if visible is not None else 0
        with sampled_machine(str(folder), "one"):
            wait_for("a sample", partial(has_more, folder, before))
        assert samples(folder)[-1].gpus == expected


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("script", ["exit 9", 'echo "[N/A], 4"'])
def test_a_program_that_fails_is_asked_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    nvidia_smi(folder, monkeypatch, f"echo asked >> {folder}/asked; {script}")
    with sampled_machine(str(folder), "one"):
        wait_for("samples", lambda: len(samples(folder)) >= 2)
    assert samples(folder)[-1].gpus == ()
    assert (folder / "asked").read_text() == "asked\n"


def test_a_run_is_sampled_and_its_bytes_do_not_depend_on_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go(small(), tmp_path / "seldom", iterations=1)
    monkeypatch.setattr(machine_use, "_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(machine_use, "SECONDS", 0.01)
    go(small(), tmp_path / "often", iterations=1)
    assert samples(tmp_path / "often", "small")
    assert hashes(tmp_path / "often") == hashes(tmp_path / "seldom")


def test_a_link_is_refused_and_a_short_block_waits_for_nothing(folder: Path) -> None:
    begun = time.monotonic()
    with sampled_machine(str(folder), "one"):
        pass
    assert time.monotonic() - begun < machine_use._FIRST_SECONDS
    file = folder / "runs/one" / MACHINE_LOG
    file.unlink()
    file.symlink_to(folder / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"), sampled_machine(str(folder), "one"):
        pass
