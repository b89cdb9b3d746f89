from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.integration.runs import artifact_hashes, command, start, write_config


@pytest.mark.slow
def test_of_two_workers_on_one_run_one_works_and_the_other_is_told(tmp_path: Path) -> None:
    config, store = write_config(tmp_path, iterations=1), tmp_path / "store"
    words = ["train", config, "--store", store, "--no-prefect", "--iterations", "500"]
    first = start(*words)
    try:
        deadline = time.monotonic() + 120
        while not (store / "artifacts" / "update_policy").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        _, told = command(*words, status=2)
        assert f"error: run small is being worked on by process {first.pid} on " in told
        assert "Traceback" not in told
        _, told = command("gc", "--store", store, "--delete", status=2)
        assert (
            f"files can be deleted only while no run of this store is worked on, and process {first.pid}"
            in told
        )
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGTERM)
        _, errors = first.communicate()
    assert "continue with:" in errors
    assert len(artifact_hashes(store)) > 5
    command("lineage", "verify", "small", "--store", store)
