from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from storage.runs.run import Run, RunStore
from tests import forked
from tests.command_line.invoke import FinishedRun, invoke
from tests.waiting import wait_for


def advanced(worker: forked.Command, run: Run, before: int) -> bool:
    """Whether the ledger has more than this many stages. The worker must not have ended."""
    assert worker.returncode is None, worker.end()
    return len(run.stages()) > before


@pytest.mark.slow
def test_of_two_workers_on_one_run_one_works_and_the_other_is_told(
    finished: FinishedRun, tmp_path: Path
) -> None:
    store = Path(shutil.copytree(finished.store, tmp_path / "store"))
    run = RunStore(str(store)).open("small")
    before = len(run.stages())
    words = ["train", finished.config, "--store", store, "--no-prefect", "--iterations", "500"]
    first = forked.start(*words)
    try:
        wait_for("a stage of the first worker", lambda: advanced(first, run, before))
        second = invoke(*words)
        assert second.status == 2
        assert f"error: run small is being worked on by process {first.pid} on " in second.errors
        collection = invoke("gc", "--store", store, "--delete")
        assert collection.status == 2
        assert (
            "files can be deleted only while no run of this store is worked on, and process "
            f"{first.pid}" in collection.errors
        )
        assert first.returncode is None
    finally:
        first.send_signal(signal.SIGTERM)
        stopped = first.end()
    assert "continue with:" in stopped.errors
    assert len(run.stages()) > before
    verified = invoke("lineage", "verify", "small", "--store", store)
    assert verified.status == 0, verified.errors
