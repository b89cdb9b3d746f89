"""Artifacts, runs and leases in a real S3-compatible server; scratch folders take the place of machines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, RunBusy, StoreError
from storage.filesystem import open_root, write_new
from storage.runs.lease import lease_state
from storage.runs.locks import run_lease
from storage.runs.run import RunStore
from tests.s3_server import s3_server
from tests.waiting import wait_for

RECIPE = Recipe("evaluate", 1, {}, {}, 0)
HOLDER = """
import sys
from storage.errors import RunBusy
from storage.runs.run import RunStore
run = RunStore(sys.argv[1]).open("run")
with run.lock(lease_seconds=float(sys.argv[2])):
    run.record(1, "evaluate", "a", kind="evaluation", reused=False, seconds=0.0)
    print("locked", flush=True)
    sys.stdin.readline()
    try:
        run.record(1, "evaluate", "late", kind="evaluation", reused=False, seconds=0.0)
    except RunBusy as busy:
        print(busy, flush=True)
"""


def hold(uri: str, machine: Path, seconds: float) -> subprocess.Popen[str]:
    """A process on another machine that has the lock of `run`."""
    machine.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, uri, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(machine)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


def lease_written(uri: str) -> float:
    """When the lease of `run` was last written, in seconds of the store's clock."""
    root = open_root(uri)
    root.fs.invalidate_cache()
    return max(float(root.fs.modified(path).timestamp()) for path in root.fs.find(run_lease(root, "run")))


def commit(store: ArtifactStore, content: str = "content") -> None:
    with store.create(RECIPE, run="run", iteration=1) as staging:
        (staging.path / "model").mkdir()
        (staging.path / "model" / "weights").write_text(content)
        staging.commit()


def test_what_one_machine_commits_another_reads(uri: str, on_machine: Callable[[str], None]) -> None:
    store = ArtifactStore(uri)
    assert store.find(RECIPE.artifact_id) is None
    commit(store)
    on_machine("b")
    other = ArtifactStore(uri)
    assert other.open(RECIPE.artifact_id).path("model/weights").read_text() == "content"
    assert other.verify(RECIPE.artifact_id) == []


def test_one_file_is_read_without_downloading_the_others(
    uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    store = ArtifactStore(uri)
    with store.create(RECIPE, run="run", iteration=1) as staging:
        (staging.path / "weights").write_text("large")
        (staging.path / "record").write_text("small")
        staging.commit()
    on_machine("b")
    other = ArtifactStore(uri)
    manifest = other.find(RECIPE.artifact_id)
    assert manifest is not None
    for _ in range(2):
        assert other.open_file(manifest, "record").read_text() == "small"
    assert [path.name for path in (tmp_path / "b").rglob("weights")] == []
    assert other.open(RECIPE.artifact_id).path("weights").read_text() == "large"


def test_files_without_their_manifest_do_not_exist(uri: str, on_machine: Callable[[str], None]) -> None:
    store, root = ArtifactStore(uri), open_root(uri)
    commit(store)
    folder = root.join("artifacts", "evaluate", RECIPE.artifact_id)
    files = {str(path).rsplit("/", 1)[-1] for path in root.fs.find(folder)}
    assert files == {"weights", "manifest.json"}
    root.fs.rm_file(f"{folder}/manifest.json")
    assert ArtifactStore(uri).find(RECIPE.artifact_id) is None


def test_two_machines_that_make_one_artifact_differently_do_not_mix_their_files(
    uri: str, on_machine: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ArtifactStore(uri), ArtifactStore(uri)
    with (
        one.create(RECIPE, run="run", iteration=1) as first,
        two.create(RECIPE, run="run", iteration=1) as second,
    ):
        (first.path / "weights").write_text("one")
        (second.path / "weights").write_text("two")
        fs = open_root(uri).fs
        really_exists = fs.exists

        def exists(path: str) -> bool:
            """The first commits just after the second has looked for a manifest and found none."""
            found = bool(really_exists(path))
            monkeypatch.setattr(fs, "exists", really_exists)
            first.commit()
            return found

        monkeypatch.setattr(fs, "exists", exists)
        assert second.commit().path("weights").read_text() == "one"
    on_machine("b")
    assert ArtifactStore(uri).open(RECIPE.artifact_id).path("weights").read_text() == "one"
    assert ArtifactStore(uri).verify(RECIPE.artifact_id) == []


def test_a_flipped_bit_in_the_bucket_is_found_though_the_download_is_whole(
    uri: str, on_machine: Callable[[str], None]
) -> None:
    store, root = ArtifactStore(uri), open_root(uri)
    commit(store)
    (weights,) = (path for path in root.fs.find(root.join("artifacts")) if path.endswith("weights"))
    root.fs.pipe_file(weights, b"bontent")
    (problem,) = store.verify(RECIPE.artifact_id)
    assert "weights has SHA-256" in problem
    on_machine("b")
    with pytest.raises(DamagedArtifact, match="weights has SHA-256"):
        ArtifactStore(uri).open(RECIPE.artifact_id)


def test_an_object_is_created_once(uri: str) -> None:
    root = open_root(uri)
    assert write_new(root, root.join("object"), b"one")
    assert not write_new(root, root.join("object"), b"two")
    assert not write_new(root, root.join("object"), b"one")
    assert write_new(root, root.join("object"), b"one", unique=True)  # the answer to its own write was lost
    assert root.fs.cat_file(root.join("object")) == b"one"


def test_a_run_is_refused_to_a_second_machine_while_the_first_renews_its_lease(
    uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    run = RunStore(uri).create("run", {})
    with hold(uri, tmp_path / "other", 3.0) as holder:
        named = f"by process {holder.pid} on {socket.gethostname()}.*If that machine is gone, it is free in"
        with pytest.raises(RunBusy, match=named), run.lock(3.0):
            pass
        begun = lease_written(uri)
        wait_for("a renewal after a lease's length", lambda: lease_written(uri) - begun > 3.0)
        with pytest.raises(RunBusy, match=named), run.lock(3.0):
            pass
        holder.kill()
        holder.wait()
        # Its lease runs until it expires, which the next test waits for.
        with pytest.raises(RunBusy, match=named), run.lock(3.0):
            pass


def test_a_lost_answer_is_not_taken_for_a_store_that_overwrites(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = open_root(uri)
    write, lost = root.fs.pipe_file, iter([True])

    def write_again_without_an_answer(path: str, content: bytes, mode: str) -> None:
        write(path, content, mode=mode)
        if next(lost, False):
            write(path, content, mode=mode)

    monkeypatch.setattr(root.fs, "pipe_file", write_again_without_an_answer)
    assert not lease_state(root, root.join("lease")).held


def test_a_machine_that_slept_through_its_lease_is_told_and_overwrites_nothing(
    uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    run = RunStore(uri).create("run", {})
    with hold(uri, tmp_path / "other", 2.0) as holder:
        holder.send_signal(signal.SIGSTOP)
        root = open_root(uri)
        wait_for("the end of the lease", lambda: not lease_state(root, run_lease(root, "run"), 2.0).held)
        with run.lock(2.0):
            run.record(2, "evaluate", "b", kind="evaluation", reused=False, seconds=0.0)
            holder.send_signal(signal.SIGCONT)
            told, _ = holder.communicate("\n")
            assert told.startswith("another machine has taken over")
            run.record(3, "evaluate", "c", kind="evaluation", reused=False, seconds=0.0)
    assert [entry.artifact_id for entry in RunStore(uri).open("run").recorded()] == ["a", "b", "c"]


def test_after_a_clean_end_and_after_a_kill_on_the_same_machine_a_run_is_free_at_once(
    uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    run = RunStore(uri).create("run", {})
    with hold(uri, tmp_path / "other", 60.0) as holder:
        holder.communicate("\n")
    with run.lock():
        pass
    with hold(uri, tmp_path / "third", 60.0) as holder:
        holder.kill()
    on_machine("third")
    with run.lock():
        pass


def test_nothing_is_collected_while_another_machine_works(
    uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    from datetime import timedelta

    from storage.upkeep.collection import collect

    run = RunStore(uri).create("run", {})
    commit(ArtifactStore(uri))
    with hold(uri, tmp_path / "other", 60.0) as holder:
        with pytest.raises(RunBusy, match=f"process {holder.pid} on .* works on run run"):
            collect(uri, timedelta(0))
        holder.communicate("\n")
    plan = collect(uri, timedelta(0))
    assert [manifest.artifact_id for manifest in plan.unreached] == [RECIPE.artifact_id]
    root = open_root(uri)
    assert root.fs.find(root.join("artifacts")) == []
    with run.lock():
        pass


def test_uploads_of_dead_machines_are_collected(uri: str, on_machine: Callable[[str], None]) -> None:
    from datetime import timedelta

    from storage.upkeep.collection import collect

    root, run = open_root(uri), RunStore(uri).create("run", {})
    commit(ArtifactStore(uri))
    run.record(1, "evaluate", RECIPE.artifact_id, kind="evaluation", reused=False, seconds=0.0)
    folder = root.join("artifacts", "evaluate")
    root.fs.pipe_file(f"{folder}/{'0' * 32}/1234/weights", b"no manifest")
    root.fs.pipe_file(f"{folder}/{RECIPE.artifact_id}/1234/weights", b"lost the race")
    assert collect(uri, timedelta(hours=1)).leftovers == ()
    found: set[tuple[str, int]] = set()

    def both_are_found() -> bool:
        # The store's times are whole seconds: what was written in this second has an age of 0.
        found.update((item.kind, item.bytes) for item in collect(uri, timedelta(0)).leftovers)
        return len(found) == 2

    wait_for("two leftovers", both_are_found)
    assert found == {("without a manifest", 11), ("without a manifest", 13)}
    assert ArtifactStore(uri).verify(RECIPE.artifact_id) == []
    assert not root.fs.exists(f"{folder}/{'0' * 32}")


def test_a_store_that_overwrites_what_was_to_be_created_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_machine: Callable[[str], None]
) -> None:
    with s3_server(tmp_path / "log", conditions=False) as careless:
        for name, value in careless.environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        run = RunStore("s3://bucket/store").create("run", {})
        with pytest.raises(StoreError, match="ignores If-None-Match"), run.lock():
            pass
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_bucket_that_does_not_exist_is_named(uri: str) -> None:
    with pytest.raises(StoreError, match="create the folder or bucket"):
        RunStore("s3://no-such-bucket/store").create("run", {})
