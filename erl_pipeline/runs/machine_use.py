"""What a run uses of its machine: processors, memory and GPUs, sampled every few seconds into `machine.jsonl`
beside the run's log. No artifact depends on it."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import psutil
from pydantic import BaseModel, ConfigDict

from erl_pipeline.runs.log import LogFile, log_file

MACHINE_LOG = "machine.jsonl"
SECONDS = 5.0
"""Seconds between two samples."""
_FIRST_SECONDS = 1.0
_SMI_SECONDS = 4.0


class _Sampled(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class GpuUse(_Sampled):
    """A GPU at one moment, whoever uses it."""

    share: float
    """Of the last moments, the share in which it computed, from 0 to 1."""
    memory: float
    """Bytes in use."""


class MachineUse(_Sampled):
    """One sample of the machine that drives a run. Memory is in bytes."""

    at: datetime
    cores: float
    """Processors that the run's processes on this machine kept busy since the sample before, on average."""
    memory: float
    """Resident memory of these processes. What several of them share is counted in each."""
    machine_cores: float
    """Like `cores`, of everything that the machine does."""
    machine_memory: float
    """Memory of the machine that new processes cannot have."""
    gpus: tuple[GpuUse, ...]
    """The machine's GPUs, or those of CUDA_VISIBLE_DEVICES; empty where `nvidia-smi` tells of none."""


@contextmanager
def sampled_machine(store_uri: str, run_name: str) -> Iterator[None]:
    """Sample within the block, in a thread. The run has to be locked. The file is cut as the run's log is.

    Raises StoreError where the file is a link.
    """
    handler = LogFile(log_file(store_uri, run_name, MACHINE_LOG))
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=(handler, stop), name="machine use", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with suppress(OSError):  # a full disk, which the stages tell of
            handler.close()


def _sample(handler: LogFile, stop: threading.Event) -> None:
    processes, wait = _Processes(), _FIRST_SECONDS
    smi = None if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else shutil.which("nvidia-smi")
    psutil.cpu_percent()  # What it gives is the mean since the call before.
    while not stop.wait(wait):
        gpus = None if smi is None else _gpus(smi)
        smi = None if gpus is None else smi  # One that fails is not asked again.
        line = processes.sample(gpus or ()).model_dump_json()
        handler.emit(logging.makeLogRecord({"msg": line}))
        wait = SECONDS


class _Processes:
    """This process and all below it, with the seconds of processor time that each has had."""

    def __init__(self) -> None:
        self._own = psutil.Process()
        self._read()

    def sample(self, gpus: tuple[GpuUse, ...]) -> MachineUse:
        before, at = self._spent, self._at
        memory = self._read()
        used = sum(seconds - before.get(process, 0.0) for process, seconds in self._spent.items())
        whole = psutil.virtual_memory()
        return MachineUse(
            at=datetime.now(UTC),
            cores=used / (self._at - at),
            memory=memory,
            machine_cores=psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1),
            machine_memory=whole.total - whole.available,
            gpus=gpus,
        )

    def _read(self) -> float:
        self._at, self._spent, memory = time.monotonic(), dict[tuple[int, float], float](), 0.0
        for process in (self._own, *self._own.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():  # It may have ended by now.
                times = process.cpu_times()
                self._spent[process.pid, process.create_time()] = times.user + times.system
                memory += process.memory_info().rss
        return memory


def _gpus(smi: str) -> tuple[GpuUse, ...] | None:
    """What `nvidia-smi` says; None where it fails, such as without a GPU or with parts of one (MIG)."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    asked = ["--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            [smi, *asked, *([f"--id={visible}"] if visible else [])],
            capture_output=True,
            text=True,
            timeout=_SMI_SECONDS,
            check=True,
        ).stdout
        rows = [line.split(",") for line in said.splitlines() if line.strip()]
        return tuple(GpuUse(share=float(share) / 100, memory=float(mib) * 2**20) for share, mib in rows)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
