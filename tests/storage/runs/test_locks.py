"""Reading a run that another process may be working on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.filesystem import open_root
from storage.runs import locks
from storage.runs.locks import lock_collection, run_holder, run_mark
from storage.runs.run import RunStore


@pytest.mark.parametrize("proc", [True, False])
def test_whoever_works_on_a_run_is_named_while_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: bool
) -> None:
    if not proc:  # as where the kernel lists no locks
        monkeypatch.setattr(locks, "_LOCKS", tmp_path / "nothing")
    root, run = open_root(str(tmp_path)), RunStore(str(tmp_path)).create("run", {})
    assert run_holder(root, "run") is None
    with run.lock():
        holder = run_holder(root, "run")
        assert holder is not None
        assert holder.pid == os.getpid()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fcntl.flock", lambda *_: pytest.fail("the lock was touched"))
            run_holder(root, "run")
    if proc:
        assert run_holder(root, "run") is None


@pytest.mark.parametrize(
    ("line", "device", "held"),
    [
        ("1: FLOCK  ADVISORY  WRITE 42 fe:10:7 0 EOF", (254, 16), True),
        ("1: FLOCK  ADVISORY  WRITE 42 08:01:7 0 EOF", (254, 16), False),  # the same inode on another disk
        ("1: FLOCK  ADVISORY  WRITE 42 fe:11:7 0 EOF", (254, 16), False),
        ("1: FLOCK  ADVISORY  WRITE 42 fe:10:77 0 EOF", (254, 16), False),
        ("1: POSIX  ADVISORY  WRITE 42 fe:10:7 0 EOF", (254, 16), False),
        ("1: FLOCK  ADVISORY  WRITE 42 00:1f:7 0 EOF", (0, 35), True),  # btrfs: `stat` names the subvolume
        ("1: FLOCK  ADVISORY  WRITE 42 00:1f:7 0 EOF", (254, 16), True),  # overlayfs: it names a layer
        ("1: -> FLOCK  ADVISORY  WRITE 42 fe:10:7 0 EOF", (254, 16), False),
        ("1: FLOCK  ADVISORY  WRITE 42 <none>:0 0 EOF", (254, 16), False),
    ],
)
def test_a_lock_of_another_disk_is_another_lock_and_an_unclear_one_is_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, device: tuple[int, int], held: bool
) -> None:
    (tmp_path / "locks").write_text(f"{line}\n")
    monkeypatch.setattr(locks, "_LOCKS", tmp_path / "locks")
    assert locks._is_locked(os.makedev(*device), 7) is held


def test_a_file_that_is_no_lock_names_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "lock").write_text("[]")
    assert run_holder(open_root(str(tmp_path)), "run") is None


def test_the_mark_changes_with_settings_with_the_ledger_and_with_collections(tmp_path: Path) -> None:
    root, run = open_root(str(tmp_path)), RunStore(str(tmp_path)).create("run", {})
    marks = [run_mark(root, "run"), run_mark(root, "run")]
    run.record(1, "stage", "id", kind="tasks", reused=False, seconds=0.0)
    marks.append(run_mark(root, "run"))
    with lock_collection(root, lambda: ["run"]):
        pass
    marks.append(run_mark(root, "run"))
    with run.lock():
        run.keep_settings({"iterations": 10})
    marks.append(run_mark(root, "run"))
    assert marks[0] == marks[1]
    assert len(set(marks)) == 4
