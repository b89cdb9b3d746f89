"""Transfers of files to an object store and back, in parts; how often the store is asked for them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.artifacts import transfers
from storage.artifacts.cache import CacheSettings
from storage.artifacts.manifest import FileEntry
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.artifacts.transfers import PART_BYTES, parts_of
from storage.errors import DamagedArtifact, StoreError
from storage.filesystem import open_root
from tests.s3_server import S3Server

RECIPE = Recipe("update_policy", 1, {}, {}, 0, kind="checkpoint")
READER = """
import sys
from storage.artifacts.store import ArtifactStore
store = ArtifactStore(sys.argv[1])
manifest = store.find(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
print(store.open_found(manifest).path("weights").stat().st_size, flush=True)
"""


def commit(store: ArtifactStore, files: dict[str, bytes], recipe: Recipe = RECIPE) -> None:
    with store.create(recipe, run="run", iteration=1) as staging:
        for name, content in files.items():
            (staging.path / name).write_bytes(content)
        staging.commit()


@pytest.fixture
def elsewhere(
    object_store_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], ArtifactStore]:
    """A store in memory with parts of four bytes, and a function that opens it as another machine would."""
    monkeypatch.setattr(transfers, "PART_BYTES", 4)

    def move() -> ArtifactStore:
        monkeypatch.setattr(tempfile, "tempdir", tempfile.mkdtemp(dir=tmp_path))
        return ArtifactStore(object_store_uri)

    return move


def in_bucket(uri: str, name: str) -> str:
    root = open_root(uri)
    (path,) = (path for path in root.fs.find(root.join("artifacts")) if path.endswith(f"/{name}"))
    return str(path)


def test_a_file_is_cut_into_parts_of_sixteen_mebibytes() -> None:
    entry = FileEntry(path="weights", sha256="", bytes=2 * PART_BYTES + 1)
    assert [(part.start, part.end) for part in parts_of(entry)] == [
        (0, 16_777_216),
        (16_777_216, 33_554_432),
        (33_554_432, 33_554_433),
    ]
    assert not list(parts_of(FileEntry(path="empty", sha256="", bytes=0)))


def test_processes_of_one_machine_download_once(
    server: S3Server, uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    """Three parts and a small file are each requested once, though three processes need them at the same
    time."""
    commit(ArtifactStore(uri), {"weights": os.urandom(2 * PART_BYTES + 1), "config.json": b"{}"})
    sent = server.requests("PUT", f"/{tmp_path.name}/artifacts/")
    assert len([path for path in sent if "weights?partNumber=" in path]) == 3
    on_machine("b")
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, uri, RECIPE.artifact_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path / "b")},
        )
        for _ in range(3)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("\n")
        reader.stdin.flush()
    for reader in readers:
        assert reader.communicate()[0] == "33554433\n"
    asked = [path.rsplit("/", 1)[-1] for path in server.requests("GET", f"/{tmp_path.name}/artifacts/")]
    assert (asked.count("weights"), asked.count("config.json")) == (3, 1)


def test_a_limit_holds_and_what_left_is_asked_for_again(
    server: S3Server, uri: str, on_machine: Callable[[str], None], tmp_path: Path
) -> None:
    """There is room for two artifacts of 1,000 bytes. After one, two, three, one was removed; it is fetched
    again in place of two."""
    one, two, three = (Recipe("evaluate", 1, {"number": number}, {}, 0) for number in (1, 2, 3))
    for recipe in (one, two, three):
        commit(ArtifactStore(uri), {"file": bytes(1000)}, recipe)
    on_machine("b")
    store = ArtifactStore(uri, cache=CacheSettings(limit_bytes=2500))
    for recipe in (one, two, three, one, three):
        with store.reading():
            assert store.open(recipe.artifact_id).path("file").read_bytes() == bytes(1000)
        held = [path.stat().st_size for path in (tmp_path / "b").rglob("file")]
        assert sum(held) <= 2000
    asked = [path for path in server.requests("GET", f"/{tmp_path.name}/") if path.endswith("/file")]
    of_each = [sum(recipe.artifact_id in path for path in asked) for recipe in (one, two, three)]
    assert of_each == [2, 1, 1]


def test_a_damaged_file_is_named(object_store_uri: str, elsewhere: Callable[[], ArtifactStore]) -> None:
    """The sixth of ten bytes, in the second of three parts."""
    store = elsewhere()
    commit(store, {"weights": b"0123456789", "small": b"abc"})
    open_root(object_store_uri).fs.pipe_file(in_bucket(object_store_uri, "weights"), b"01234!6789")
    (problem,) = store.verify(RECIPE.artifact_id)
    assert "/weights has SHA-256" in problem
    assert "small" not in problem
    with pytest.raises(DamagedArtifact, match="/weights has SHA-256"):
        elsewhere().open(RECIPE.artifact_id)


def test_files_of_another_length_or_none_are_named(
    object_store_uri: str, elsewhere: Callable[[], ArtifactStore]
) -> None:
    commit(elsewhere(), {"long": b"0123456789", "gone": b"abc"})
    fs = open_root(object_store_uri).fs
    fs.pipe_file(in_bucket(object_store_uri, "long"), b"0123456789!")
    fs.rm_file(in_bucket(object_store_uri, "gone"))
    said = r"/gone is missing; .*/long has 11 bytes, the manifest says 10\.$"
    with pytest.raises(DamagedArtifact, match=said):
        elsewhere().open(RECIPE.artifact_id)


def test_a_file_that_came_damaged_is_fetched_again(
    object_store_uri: str, elsewhere: Callable[[], ArtifactStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time a part has another byte, or another length; other files are fetched once."""
    commit(elsewhere(), {"weights": b"0123456789", "cut": b"abcde", "whole": b"abc", "empty": b""})
    other = elsewhere()
    fs = open_root(object_store_uri).fs
    send, asked = fs.cat_file, []

    def damage_once(path: str, start: int | None = None, end: int | None = None) -> bytes:
        part = (path.rsplit("/", 1)[-1], start)
        asked.append(part)
        content: bytes = send(path, start=start, end=end)
        damaged = {("weights", 4): b"4!67", ("cut", 0): b"ab"}
        return damaged[part] if asked.count(part) == 1 and part in damaged else content

    monkeypatch.setattr(fs, "cat_file", damage_once)
    opened = other.open(RECIPE.artifact_id)
    assert opened.path("weights").read_bytes() == b"0123456789"
    assert opened.path("cut").read_bytes() == b"abcde"
    assert opened.path("empty").read_bytes() == b""
    assert {part: asked.count(part) for part in asked if part[1] is not None} == {
        ("weights", 0): 2,
        ("weights", 4): 2,
        ("weights", 8): 2,
        ("cut", 0): 2,
        ("cut", 4): 2,
        ("whole", 0): 1,
    }


def test_an_error_of_the_store_is_told_and_leaves_no_copy(
    object_store_uri: str, elsewhere: Callable[[], ArtifactStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(elsewhere(), {"weights": b"0123456789"})
    other = elsewhere()
    fs = open_root(object_store_uri).fs
    send = fs.cat_file

    def fail(path: str, start: int | None = None, end: int | None = None) -> bytes:
        if start == 8:
            raise PermissionError("no")
        content: bytes = send(path, start=start, end=end)
        return content

    monkeypatch.setattr(fs, "cat_file", fail)
    with pytest.raises(StoreError, match=r"cannot download .*you have no permission"):
        other.open(RECIPE.artifact_id)
    assert not list(Path(tempfile.gettempdir()).rglob("weights"))
