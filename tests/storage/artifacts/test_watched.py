"""A store that keeps what it has read until the files change."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.artifacts.watched import WatchedStore
from storage.errors import DamagedArtifact, InputError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The only file of the only artifact of a store."""
    store = ArtifactStore(str(tmp_path))
    recipe = Recipe("stage", 1, {}, {}, 0, kind="tasks")
    with store.create(recipe, run="run", iteration=None) as staging:
        (staging.path / "file").write_text("as committed")
        staging.commit()
    return tmp_path / "artifacts" / "stage" / recipe.artifact_id / "file"


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
