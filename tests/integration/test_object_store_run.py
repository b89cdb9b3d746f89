"""A run in a bucket of a real S3-compatible server, begun on one machine and continued on another."""

from __future__ import annotations

from pathlib import Path

import pytest
import s3fs

from tests.command_line.invoke import FinishedRun, invoke
from tests.integration.runs import artifact_hashes, command
from tests.s3_server import s3_server

STORE = "s3://bucket/store"


@pytest.mark.slow
def test_a_run_in_a_bucket_goes_on_on_another_machine_to_the_same_bytes(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        train = ["train", finished.config, "--store", STORE, "--no-prefect"]
        for machine, iterations in (("one", "1"), ("two", "2")):
            (tmp_path / machine).mkdir()
            monkeypatch.setenv("TMPDIR", str(tmp_path / machine))
            command(*train, "--iterations", iterations)
        verified = invoke("lineage", "verify", "small", "--store", STORE)
        assert verified.output.startswith("Run small: all is whole.")

        assert artifact_hashes(STORE) == artifact_hashes(finished.store)

        collected = invoke("gc", "--store", STORE, "--retain-optimizer", "1", "--delete")
        assert "by retention" in collected.output
        verified = invoke("lineage", "verify", "small", "--store", STORE)
        assert "Pruned by retention: 2 files" in verified.output
        again = invoke(*train)
        assert again.errors.startswith("Run small is finished")
    s3fs.S3FileSystem.clear_instance_cache()
