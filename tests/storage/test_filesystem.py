"""Nothing outside a store changes, whatever links it holds; and a scratch folder is the user's own."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError, store_errors
from storage.filesystem import (
    list_names,
    open_root,
    open_to_write,
    private_folder,
    read_bytes,
    refuse_links_out,
    replace_file,
    sha256_file,
    users_scratch,
    write_new,
)
from storage.runs.ledger import Ledger
from storage.runs.locks import lock_collection, lock_run
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreError, match=r"makes no hard links .* Put the store on one that does"):
        write_new(open_root(str(tmp_path)), str(tmp_path / "run.json"), b"first")
    assert list(tmp_path.iterdir()) == []


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


DECOY = b"do not touch\n"


def decoyed(store: Path, outside: Path, part: str) -> dict[Path, Path]:
    """Replace each file of a part of a store by a link to a file of its own outside; decoy -> link."""
    outside.mkdir()
    found = [path for path in sorted(store.glob(part)) if path.is_file()]
    assert found, part
    links = {}
    for number, path in enumerate(found):
        decoy = outside / f"{number:04d}"
        decoy.write_bytes(DECOY)
        path.unlink()
        path.symlink_to(decoy)
        links[decoy] = path
    return links


@pytest.mark.parametrize("part", ["*.lock", "runs/*/report.html", "memory/*.*", "artifacts/**/*", "**/*"])
def test_no_command_writes_through_a_linked_file(finished: FinishedRun, tmp_path: Path, part: str) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    shutil.copytree(finished.store, store)
    links = decoyed(store, outside, part)
    config = finished.config
    training = ("train", config, "--iterations", "3", "--no-prefect")
    for words in [
        # A file of an artifact that is a link counts as damaged: its artifact would be made again.
        *([] if part.startswith("artifacts") else [training]),
        ("report", "small"),
        ("memory", "search", "small", "a lake"),
        ("gc", "--min-age", "0", "--delete", "--retain-checkpoints", "1"),
        ("runs", "remove", "small", "--yes"),
    ]:
        invoke(*words, "--store", store)
    assert [str(links[decoy]) for decoy in links if decoy.read_bytes() != DECOY] == []
    assert sorted(path.name for path in outside.iterdir()) == [decoy.name for decoy in links]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "folder",
    ["runs", "runs/small", "runs/small/tensorboard", "artifacts", "memory", "memory/small", "staging"],
)
def test_a_linked_folder_is_refused_and_keeps_its_files(
    finished: FinishedRun, tmp_path: Path, folder: str
) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    shutil.copytree(finished.store, store)
    (store / folder).mkdir(exist_ok=True)
    (store / folder).rename(outside)
    (store / folder).symlink_to(outside)
    before = contents(outside)
    trained = invoke("train", finished.config, "--iterations", "3", "--no-prefect", "--store", store)
    assert trained.status == 2
    assert f"{store / folder} is a symbolic link" in trained.errors
    invoke("report", "small", "--store", store)
    invoke("gc", "--min-age", "0", "--delete", "--retain-checkpoints", "1", "--store", store)
    assert contents(outside) == before


def test_a_store_that_is_itself_a_link_works(finished: FinishedRun, tmp_path: Path) -> None:
    shutil.copytree(finished.store, tmp_path / "elsewhere")
    (tmp_path / "store").symlink_to(tmp_path / "elsewhere")
    done = invoke("train", finished.config, "--check", "--no-prefect", "--store", tmp_path / "store")
    assert done.status == 0, done.errors


def test_a_link_is_not_followed_and_not_truncated(tmp_path: Path) -> None:
    (tmp_path / "decoy").write_bytes(DECOY)
    (tmp_path / "link").symlink_to("decoy")
    for mode in ("ab", "ab+", "wb"):
        with pytest.raises(StoreError, match="is a symbolic link"):
            open_to_write(tmp_path / "link", mode)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a regular file"):
        open_to_write(tmp_path / "pipe", "ab+")
    root = open_root(str(tmp_path))
    assert not write_new(root, str(tmp_path / "link"), b"other")
    replace_file(root, str(tmp_path / "link"), b"other")
    assert (tmp_path / "decoy").read_bytes() == DECOY
    assert (tmp_path / "link").read_bytes() == b"other"
    assert not (tmp_path / "link").is_symlink()


def test_links_of_libraries_within_the_store_pass(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "runs" / "a" / "wandb" / "offline-1").mkdir(parents=True)
    (store / "runs" / "a" / "wandb" / "latest-run").symlink_to("offline-1")
    refuse_links_out(store, [store / "runs" / "a"])
    (store / "runs" / "a" / "wandb" / "out").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="wandb/out is a symbolic link"):
        refuse_links_out(store, [store / "runs" / "a"])


def test_scratch_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scratch = open_root("memory://bucket").scratch.parent
    assert scratch == tmp_path / f"erl-pipeline-{os.getuid()}" == users_scratch()
    assert scratch.stat().st_mode & 0o777 == 0o700
    scratch.chmod(0o755)  # made by an earlier version, and written by nobody else
    users_scratch()
    assert scratch.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("fault", ["writable by others", "link", "file", "other owner"])
def test_scratch_that_another_user_may_have_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scratch = tmp_path / f"erl-pipeline-{os.getuid()}"
    if fault == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        scratch.symlink_to(tmp_path / "theirs")
    elif fault == "file":
        scratch.write_text("")
    else:
        scratch.mkdir(mode=0o700)
        if fault == "writable by others":
            scratch.chmod(0o777)
        else:
            mine = os.getuid()
            monkeypatch.setattr(os, "getuid", lambda: mine + 1)
            scratch.rename(tmp_path / f"erl-pipeline-{mine + 1}")
    root = open_root("memory://bucket")
    with (
        pytest.raises(StoreError, match="another user may have put files there"),
        lock_run(root, "run"),
    ):
        pass


def test_locks_and_ledgers_are_not_opened_through_links(tmp_path: Path) -> None:
    store, decoy = tmp_path / "store", tmp_path / "decoy"
    decoy.write_bytes(DECOY)
    (store / "runs" / "a").mkdir(parents=True)
    root = open_root(str(store))
    for name in ("collection.lock", "runs/a/lock", "runs/a/ledger.jsonl"):
        (store / name).unlink(missing_ok=True)
        (store / name).symlink_to(decoy)
        with pytest.raises(StoreError, match="is a symbolic link"), lock_run(root, "a"):
            pass
        if name == "collection.lock":
            with pytest.raises(StoreError, match="is a symbolic link"), lock_collection(root, list):
                pass
        (store / name).unlink()
    assert decoy.read_bytes() == DECOY
    assert Ledger(root, str(store / "runs" / "a" / "ledger.jsonl"), "a").read() == []


def test_a_private_folder_needs_its_parent(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Set TMPDIR"):
        private_folder(tmp_path / "missing" / "folder")
