"""A run in a bucket of a real S3-compatible server, begun on one machine and continued on another."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import s3fs

from tests import forked
from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.ui.clients import client, links_of, main_text
from tests.integration.runs import artifact_hashes
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
            trained = forked.run(*train, "--iterations", iterations)
            assert trained.status == 0, trained.errors
        verified = invoke("lineage", "verify", "small", "--store", STORE)
        assert verified.output.startswith("Run small: all is whole.")

        assert artifact_hashes(STORE) == artifact_hashes(finished.store)

        collected = invoke("gc", "--store", STORE, "--retain-optimizer", "1", "--delete")
        assert "by retention" in collected.output
        verified = invoke("lineage", "verify", "small", "--store", STORE)
        assert "Pruned by retention: 2 files" in verified.output
        again = invoke(*train)
        assert again.errors.startswith("Run small is finished")

        (tmp_path / "three").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "three"))
        _assert_pages_are_those_of(finished.store)
        copied = {file.name for file in (tmp_path / "three").rglob("copies/*/*") if file.is_file()}
        assert "trajectories.parquet" in copied
        assert not any(name.endswith(".safetensors") for name in copied)  # no weights
    s3fs.S3FileSystem.clear_instance_cache()


def _assert_pages_are_those_of(local_store: Path) -> None:
    """The pages over the bucket are the same as those over a store with the same artifacts."""
    bucket, local = client(STORE), client(local_store)
    paths = [f"/runs/small/{page}" for page in ("rows", "memory", "memory?text=moves&mode=text", "plan")]
    episodes = [link for link in links_of(local.get(paths[0]).text) if "/episodes/" in link]
    for path in [*paths, episodes[0]]:
        read, expected = bucket.get(path), local.get(path)
        assert (read.status_code, expected.status_code) == (200, 200), path
        assert main_text(read.text).replace(STORE, str(local_store)) == main_text(expected.text)
