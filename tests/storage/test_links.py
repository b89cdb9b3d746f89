"""Nothing outside a store changes, whatever links it holds; and a scratch folder is the user's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from storage.errors import StoreError
from storage.filesystem import open_root, replace_file, users_scratch, write_new
from storage.links import open_to_write, private_folder, refuse_links_out
from storage.runs.ledger import Ledger
from storage.runs.locks import lock_collection, lock_run
from tests.command_line.invoke import FinishedRun, invoke

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
            with pytest.raises(StoreError, match="is a symbolic link"), lock_collection(root, []):
                pass
        (store / name).unlink()
    assert decoy.read_bytes() == DECOY
    assert Ledger(root, str(store / "runs" / "a" / "ledger.jsonl"), "a").read() == []


def test_a_private_folder_needs_its_parent(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="Set TMPDIR"):
        private_folder(tmp_path / "missing" / "folder")
