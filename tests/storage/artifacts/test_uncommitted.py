"""Artifacts whose files are read before they are committed, and what a kill leaves of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from storage.artifacts.layout import remove_abandoned
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Draft, Uncommitted, Writer, draft
from storage.errors import DamagedArtifact
from storage.filesystem import NotOnDisk, sha256_file

RECIPE = Recipe("write", 1, {"word": "one"}, {}, 0, kind="table")
ID = RECIPE.artifact_id


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(str(tmp_path), threads=1)


def place_of(store: ArtifactStore) -> Path:
    return Path(store.uri) / "artifacts" / "write" / ID


def written(begun: Uncommitted, text: str = "one") -> Draft:
    """Write the file of the artifact."""
    (begun.path / "file").write_text(text)
    return draft(RECIPE, begun.path, Writer("run", None, 1), datetime.now(UTC), counters={"words": 1})


def test_files_are_read_before_they_are_hashed(store: ArtifactStore) -> None:
    begun = store.begin()
    made = written(begun)
    assert [(entry.path, entry.sha256, entry.bytes) for entry in made.manifest.files] == [("file", "", 3)]
    assert begun.place(made.manifest)
    assert store.find(ID) is None, "there is no artifact without a manifest"

    reader = ArtifactStore(store.uri)
    reader.expect([made.manifest])
    assert reader.open(ID).path("file").read_text() == "one"

    committed = begun.commit(made)
    begun.close()
    assert committed.manifest.files[0].sha256 == sha256_file(place_of(store) / "file")
    assert reader.open(ID).manifest == committed.manifest, "the reader has the digests now"
    assert ArtifactStore(store.uri).open(ID).manifest == committed.manifest
    assert sorted(path.name for path in place_of(store).iterdir()) == ["file", "manifest.json"]
    assert not list(store.staging_folder.iterdir())


def test_another_reader_hashes_what_was_committed(store: ArtifactStore) -> None:
    begun = store.begin()
    made = written(begun)
    begun.place(made.manifest)
    begun.commit(made)
    begun.close()
    (place_of(store) / "file").write_text("two")
    with pytest.raises(DamagedArtifact, match="has SHA-256"):
        ArtifactStore(store.uri).open(ID)


def test_a_file_that_has_another_size_than_it_was_written_with_is_not_committed(store: ArtifactStore) -> None:
    for placed in (True, False):
        begun = store.begin()
        made = written(begun)
        if placed:
            begun.place(made.manifest)
        ((place_of(store) if placed else begun.path) / "file").write_text("on")
        with pytest.raises(NotOnDisk, match="has 2 bytes, and 3 were written"):
            begun.commit(made)
        begun.close()
    assert store.find(ID) is None


def test_what_is_not_committed_is_removed(store: ArtifactStore) -> None:
    begun = store.begin()
    begun.place(written(begun).manifest)
    begun.close()
    assert not place_of(store).exists()
    assert not list(store.staging_folder.iterdir())


def test_the_artifact_that_was_there_first_is_kept(store: ArtifactStore) -> None:
    with store.create(RECIPE, run="first", iteration=None) as staging:
        (staging.path / "file").write_text("one")
        first = staging.commit()
    begun = store.begin()
    made = written(begun)
    assert not begun.place(made.manifest)
    assert begun.commit(made).manifest == first.manifest
    begun.close()
    assert store.open(ID).manifest.run == "first"


def test_a_second_writer_waits_for_the_first(store: ArtifactStore) -> None:
    begun = store.begin()
    made = written(begun)
    begun.place(made.manifest)
    second: list[str] = []

    def write() -> None:
        other = ArtifactStore(store.uri, threads=1)
        with other.create(RECIPE, run="second", iteration=None) as staging:
            (staging.path / "file").write_text("one")
            second.append(staging.commit().manifest.run)

    writing = threading.Thread(target=write)
    writing.start()
    writing.join(0.5)
    assert writing.is_alive(), "it must not take the place of a living writer"
    begun.commit(made)
    begun.close()
    writing.join(20)
    assert second == ["run"]
    assert not (Path(store.uri) / "damaged").exists()


def _die_before_the_manifest(uri: str) -> None:
    begun = ArtifactStore(uri, threads=1).begin()
    begun.place(written(begun, "x" * 100).manifest)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_next_writer_removes_what_a_killed_one_left(store: ArtifactStore) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_die_before_the_manifest, args=(store.uri,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (place_of(store) / "file").exists()
    begun = store.begin()
    assert not place_of(store).exists()
    made = written(begun)
    assert begun.place(made.manifest)
    begun.commit(made)
    begun.close()
    assert store.open(ID).path("file").read_text() == "one"
    assert not (Path(store.uri) / "damaged").exists()


def test_what_a_living_writer_has_moved_stays_when_another_dies_before_its_move(store: ArtifactStore) -> None:
    living = store.begin()
    made = written(living)
    assert living.place(made.manifest)
    dead = store.staging_folder / "0123456789abcdef"
    (dead / "files").mkdir(parents=True)
    (dead / ".place").write_text(f"write/{ID}")

    remove_abandoned(store.staging_folder)

    assert not dead.exists()
    living.commit(made)
    living.close()
    assert store.open(ID).path("file").read_text() == "one"


@pytest.mark.parametrize("named", ["../..", "write/../../keep", "write/abc/..", "/etc/passwd", "write", ""])
def test_only_the_place_of_an_artifact_is_ever_removed(store: ArtifactStore, named: str) -> None:
    kept = Path(store.uri) / "keep"
    kept.mkdir(parents=True)
    place_of(store).mkdir(parents=True)
    left = store.staging_folder / "0123456789abcdef"
    left.mkdir(parents=True)
    (left / ".place").write_text(named)
    remove_abandoned(store.staging_folder)
    assert not left.exists()
    assert kept.exists()
    assert place_of(store).exists()
