"""A run keeps its identity, and no other run has it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from storage.runs.identity import run_identity
from storage.runs.run import RunStore


def test_an_identity_stays_and_each_run_has_its_own(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    for name in ("one", "two"):
        RunStore(store).create(name, {})
    one = run_identity(store, "one")
    assert re.fullmatch("[0-9a-f]{16}", one)
    with RunStore(store).open("one").lock():
        assert run_identity(store, "one") == one
    (tmp_path / "link").symlink_to(tmp_path / "store")
    assert run_identity(f"file://{tmp_path}/link/", "one") == one
    assert run_identity(store, "two") != one


def test_a_copy_is_another_run_also_when_it_lies_where_the_first_one_lay(tmp_path: Path) -> None:
    store, copy, moved = tmp_path / "store", tmp_path / "copy", tmp_path / "moved"
    RunStore(str(store)).create("run", {})
    first = run_identity(str(store), "run")
    shutil.copytree(store, copy)
    store.rename(moved)
    copy.rename(store)
    others = [run_identity(str(each), "run") for each in (store, moved)]
    assert len({first, *others}) == 3
    store.rename(copy)
    moved.rename(store)
    assert run_identity(str(store), "run") == first


def test_a_run_in_an_object_store_is_told_by_its_address() -> None:
    for store in ("memory://here", "memory://there"):
        RunStore(store).create("run", {})
    first = run_identity("memory://here", "run")
    assert run_identity("memory://here/", "run") == first
    assert run_identity("memory://there", "run") != first
