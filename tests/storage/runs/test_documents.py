"""A run keeps its identity, and no other run has it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from storage.artifacts.sealing import record_bytes
from storage.errors import StoreError
from storage.runs.documents import BranchOrigin, OfflineOrigin, read_origin, run_identity, write_origin
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


BRANCH = BranchOrigin(run="first", iteration=3, stage="update_policy")


def test_an_origin_is_written_once_and_read_again(tmp_path: Path) -> None:
    offline = OfflineOrigin(
        run="first", first_iteration=2, last_iteration=5, checkpoint_id="c" * 32, evaluates=False
    )
    assert read_origin(str(tmp_path), "second") is None
    write_origin(str(tmp_path), "second", BRANCH)
    write_origin(str(tmp_path), "third", offline)
    write_origin(str(tmp_path), "second", BRANCH)

    assert read_origin(str(tmp_path), "second") == BRANCH
    assert read_origin(str(tmp_path), "third") == offline
    assert offline.iterations == 4
    assert BRANCH.describe() == "from update_policy in iteration 3 of first"
    assert offline.describe() == (
        "on the stored rollouts of iterations 2..5 of first at checkpoint cccccccccccc, without evaluation"
    )


def test_another_origin_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    write_origin(str(tmp_path), "second", BRANCH)
    with pytest.raises(StoreError, match="another origin"):
        write_origin(str(tmp_path), "second", BRANCH.model_copy(update={"iteration": 4}))
    assert read_origin(str(tmp_path), "second") == BRANCH


def test_a_file_that_is_no_origin_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "second" / "origin.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(record_bytes({"type": "elsewhere"}))
    with pytest.raises(StoreError, match=r"origin\.json is not the origin of a run"):
        read_origin(str(tmp_path), "second")
