"""Removing runs: what is deleted, what stays, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import InputError, RunBusy
from storage.runs.origin import BranchOrigin, write_origin
from storage.runs.removal import remove_run
from storage.runs.run import RunStore
from tests.histories import write_history


def test_a_removed_run_is_gone_and_its_artifacts_stay(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    (tmp_path / "store" / "runs" / "base" / "tensorboard").mkdir()
    (tmp_path / "store" / "runs" / "base" / "report.html").write_text("page")
    before = set((tmp_path / "store" / "artifacts").rglob("*"))
    remove_run(history.store.uri, "base")
    assert RunStore(history.store.uri).list() == ["branch"]
    assert [path.name for path in (tmp_path / "store" / "runs").iterdir()] == ["branch"]
    assert set((tmp_path / "store" / "artifacts").rglob("*")) == before
    RunStore(history.store.uri).create("base", {})


def test_a_run_that_another_began_from_is_kept(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    for name in ("one", "two"):
        runs.create(name, {})
    write_origin(str(tmp_path), "two", BranchOrigin(run="one", iteration=1, stage="update_policy"))
    with pytest.raises(InputError, match=r"cannot be removed: two began from it .* Remove that first"):
        remove_run(str(tmp_path), "one")
    remove_run(str(tmp_path), "two")
    remove_run(str(tmp_path), "one")
    assert runs.list() == []


def test_a_run_that_somebody_works_on_is_kept_and_says_who(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    runs.create("one", {})
    assert runs.holder("one") is None
    code = (
        "import sys; from storage.runs.run import RunStore\n"
        "with RunStore(sys.argv[1]).open('one').lock(): print('held', flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "held\n"
    holder = runs.holder("one")
    assert holder is not None
    assert holder.startswith(f"process {worker.pid} on ")
    with pytest.raises(RunBusy, match=f"run one is being worked on by process {worker.pid}"):
        remove_run(str(tmp_path), "one")
    worker.communicate()
    assert runs.list() == ["one"]
    assert runs.holder("one") is None
    remove_run(str(tmp_path), "one")
    assert runs.list() == []


def test_a_run_of_an_object_store_is_removed(tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}"
    runs = RunStore(uri)
    run = runs.create("one", {})
    with run.lock():
        run.record(None, "bootstrap", "0" * 64, kind="checkpoint", reused=False, seconds=0.0)
    remove_run(uri, "one")
    assert runs.list() == []
    assert runs.create("one", {}).stages() == []
