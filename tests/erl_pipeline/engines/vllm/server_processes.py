"""The processes of a server that tests stop, kill or starve."""

from __future__ import annotations

from pathlib import Path

import psutil

from erl_pipeline.engines.vllm.server import ManagedServer


def engine_process(server: ManagedServer) -> int:
    """The process that schedules and computes the steps, found through its parents."""
    assert server.process_id is not None
    (api_server,) = _children(server.process_id)
    return next(pid for pid in _children(api_server) if "EngineCor" in Path(f"/proc/{pid}/comm").read_text())


def no_more_memory(process_id: int) -> None:
    """Allow the process 8 MB more than now, so that small allocations succeed and large ones fail."""
    process = psutil.Process(process_id)
    most = process.memory_info().vms + 8_000_000
    process.rlimit(psutil.RLIMIT_AS, (most, most))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
