"""What a worker process does with a stage that it is given."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from flows.stage_worker import ProcessWork


def hold(_work: ProcessWork, free: Event) -> None:
    """As Prefect's engine does that waits for a slot: the stage does not begin."""
    free.wait()


def test_a_process_whose_stage_has_not_begun_ends_when_the_run_is_stopped(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    work = ProcessWork(b"", {}, tmp_path / "reports.jsonl", stop, tmp_path / "workers.log")
    spawning = get_context("spawn")
    process = spawning.Process(target=hold, args=(work, spawning.Event()), daemon=True)
    process.start()
    process.join(120)
    assert process.exitcode == 1
