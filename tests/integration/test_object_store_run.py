"""A run in a bucket of a real S3-compatible server, begun on one machine and continued on another."""

from __future__ import annotations

from pathlib import Path

import pytest
import s3fs

from tests.integration.runs import artifact_hashes, command, write_config
from tests.s3_server import s3_server

STORE = "s3://bucket/store"


@pytest.mark.slow
def test_a_run_in_a_bucket_goes_on_on_another_machine_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path)
    local = tmp_path / "local"
    command("train", config, "--store", local, "--no-prefect")
    with s3_server(tmp_path / "log") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        for machine, iterations in (("one", "1"), ("two", "2")):
            (tmp_path / machine).mkdir()
            monkeypatch.setenv("TMPDIR", str(tmp_path / machine))
            command("train", config, "--store", STORE, "--no-prefect", "--iterations", iterations)
        output, _ = command("lineage", "verify", "small", "--store", STORE)
        assert output.startswith("Run small: all is whole.")

        in_bucket = artifact_hashes(STORE)
        assert in_bucket == artifact_hashes(local)

        output, _ = command("gc", "--store", STORE, "--retain-optimizer", "1", "--delete")
        assert "by retention" in output
        output, _ = command("lineage", "verify", "small", "--store", STORE)
        assert "Pruned by retention: 2 files" in output
        _, told = command("train", config, "--store", STORE, "--no-prefect")
        assert told == "Run small is finished: it has 2 iterations, all committed.\n"
    s3fs.S3FileSystem.clear_instance_cache()
