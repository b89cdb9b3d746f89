"""A store that keeps what it has read until the files change."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.artifacts.watched import WatchedStore
from storage.errors import DamagedArtifact, InputError

RECIPE = Recipe("stage", 1, {}, {}, 0, kind="tasks")


def make(store: ArtifactStore, text: str) -> None:
    """The only artifact of a store."""
    with store.create(RECIPE, run="run", iteration=None) as staging:
        (staging.path / "file").write_text(text)
        staging.commit()


@pytest.fixture
def bucket() -> str:
    """A store in an object store, with one artifact."""
    uri = f"memory://{uuid.uuid4().hex}"
    make(ArtifactStore(uri), "first")
    return uri


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The only file of the only artifact of a store."""
    make(ArtifactStore(str(tmp_path)), "as committed")
    return tmp_path / "artifacts" / "stage" / RECIPE.artifact_id / "file"


def test_what_did_not_change_is_not_hashed_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore(str(file.parents[3]))
    artifact = store.open(file.parent.name)
    path = store.open_file(artifact.manifest, "file")
    monkeypatch.setattr("storage.artifacts.manifest.sha256_file", lambda path: pytest.fail("hashed"))
    assert store.open(file.parent.name) is artifact
    assert store.open_file(artifact.manifest, "file") == path


@pytest.mark.parametrize("way", ["open", "open_file"])
def test_what_changed_or_went_is_noticed(file: Path, way: str) -> None:
    store = WatchedStore(str(file.parents[3]))
    manifest = store.open(file.parent.name).manifest

    def read() -> object:
        return store.open(manifest.artifact_id) if way == "open" else store.open_file(manifest, "file")

    read()
    file.write_text("something else")
    with pytest.raises(DamagedArtifact, match="SHA-256"):
        read()
    file.unlink()
    with pytest.raises(DamagedArtifact, match="is missing"):
        read()


def test_a_manifest_that_went_is_no_longer_found(file: Path) -> None:
    store = WatchedStore(str(file.parents[3]))
    assert store.find(file.parent.name) is store.find(file.parent.name)
    (file.parent / "manifest.json").unlink()
    assert store.find(file.parent.name) is None
    with pytest.raises(InputError):
        store.open(file.parent.name)


def test_what_another_process_made_again_in_a_bucket_is_opened_anew(bucket: str) -> None:
    page, run = WatchedStore(bucket), ArtifactStore(bucket)
    before = page.open(RECIPE.artifact_id)
    assert before.path("file").read_text() == "first"
    assert page.open_file(before.manifest, "file").read_text() == "first"
    assert page.find(RECIPE.artifact_id) is before.manifest

    run.discard_damaged(RECIPE.artifact_id)
    make(run, "second")
    after = page.open(RECIPE.artifact_id)
    assert after.path("file").read_text() == "second"
    assert page.open_file(after.manifest, "file").read_text() == "second"
    assert list(page.list()) == [after.manifest]


@pytest.mark.parametrize("way", ["open_found", "open_file"])
def test_a_manifest_of_a_list_leads_to_what_was_made_again_in_a_bucket(bucket: str, way: str) -> None:
    """No copy on this machine has the files of the older one."""
    page, run = WatchedStore(bucket), ArtifactStore(bucket)
    [older] = page.list()
    shutil.rmtree(run.open(RECIPE.artifact_id).path("file").parent)
    run.discard_damaged(RECIPE.artifact_id)
    make(run, "second")
    assert next(page.list()) is older  # a list reads no manifest twice
    path = page.open_found(older).path("file") if way == "open_found" else page.open_file(older, "file")
    assert path.read_text() == "second"
    assert next(page.list()) is not older


def test_what_another_process_removed_from_a_bucket_is_no_longer_found(bucket: str) -> None:
    page = WatchedStore(bucket)
    [manifest] = page.list()
    ArtifactStore(bucket).remove(manifest)
    assert page.find(RECIPE.artifact_id, "stage") is manifest  # as a ledger asks: what was read last
    assert list(page.list()) == []
    assert page.find(RECIPE.artifact_id, "stage") is None
    with pytest.raises(InputError):
        page.open(RECIPE.artifact_id)
