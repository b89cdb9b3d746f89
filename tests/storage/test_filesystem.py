from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.filesystem import (
    list_names,
    open_root,
    publish_folder,
    read_bytes,
    sha256_file,
    store_errors,
    write_new,
)
from storage.runs.run import RunStore


def test_a_new_file_is_written_once(store_uri: str) -> None:
    root = open_root(store_uri)
    path = root.join("runs", "one", "run.json")
    assert read_bytes(root, path) is None
    assert write_new(root, path, b"first")
    assert not write_new(root, path, b"second")
    assert read_bytes(root, path) == b"first"
    assert list_names(root, root.join("runs", "one")) == ["run.json"]


def test_a_folder_that_is_not_there_has_no_names(store_uri: str) -> None:
    root = open_root(store_uri)
    assert list_names(root, root.join("nothing")) == []


def test_an_object_store_keeps_local_things_apart_by_its_uri() -> None:
    one, other = open_root("memory://one"), open_root("memory://other")
    assert not one.local
    assert one.scratch != other.scratch
    assert one.scratch == open_root("memory://one").scratch


def test_a_file_uri_is_a_local_folder(tmp_path: Path) -> None:
    root = open_root(f"file://{tmp_path}")
    assert root.local
    assert root.scratch == tmp_path


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot open store 'nope://bucket'"):
        open_root("nope://bucket")


def test_a_file_in_the_way_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    root = open_root(str(tmp_path / "store"))
    with pytest.raises(StoreError, match="choose another store"):
        write_new(root, root.join("runs", "run.json"), b"")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "the disk is full: free some space"),
        (errno.EACCES, "you have no permission: choose another store"),
        (errno.EROFS, "the file system is read-only"),
        (errno.ENOENT, "create the folder or bucket"),
    ],
)
def test_errors_of_the_system_say_what_to_do(number: int, advice: str) -> None:
    with pytest.raises(StoreError, match=f"cannot write /place: .*{advice}"), store_errors("write", "/place"):
        raise OSError(number, "what the system says")


def test_programming_errors_pass_through() -> None:
    with pytest.raises(KeyError), store_errors("write", "/place"):
        raise KeyError("a mistake")


def test_the_first_folder_published_stays(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    target = tmp_path / "parent" / "target"
    assert publish_folder(tmp_path / "one", target)
    assert not publish_folder(tmp_path / "two", target)
    assert (target / "file").read_text() == "one"


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256_file(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()


def test_the_names_of_new_folders_are_on_disk_before_the_ledger_names_what_is_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, mkdir, rename = os.fsync, os.mkdir, os.rename

    def told(path: object) -> str:
        return str(Path(str(path)).relative_to(tmp_path))

    def synced(descriptor: int) -> None:
        done.append(f"sync {told(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def made(path: str, *given: int, **named: int) -> None:
        mkdir(path, *given, **named)
        done.append(f"make {told(path)}")

    def renamed(source: str, target: str) -> None:
        rename(source, target)
        done.append(f"rename {told(target)}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "mkdir", made)
    monkeypatch.setattr(os, "rename", renamed)
    store = str(tmp_path / "store")
    run = RunStore(store).create("run", {})
    recipe = Recipe("evaluate", 1, {}, {}, 0, kind="evaluation")
    with ArtifactStore(store).create(recipe, run="run", iteration=1) as staging:
        (staging.path / "file").write_text("content")
        staging.commit()
    run.record(1, "evaluate", recipe.artifact_id, kind="evaluation", reused=False, seconds=1.0)
    recorded = done.index("sync store/runs/run/ledger.jsonl")
    for folder in ("store/runs", "store/runs/run", "store/artifacts", "store/artifacts/evaluate"):
        parent = folder.rpartition("/")[0]
        assert f"sync {parent}" in done[done.index(f"make {folder}") : recorded], folder
    committed = done.index(f"rename store/artifacts/evaluate/{recipe.artifact_id}")
    assert "sync store/artifacts/evaluate" in done[committed:recorded]
    assert "sync store/runs/run" in done[recorded:]
