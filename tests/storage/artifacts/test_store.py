from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact, InputError, StoreError
from storage.tables.trajectories import Trajectory, read_trajectories, write_trajectories


def commit(store: ArtifactStore, recipe: Recipe, content: str = "content") -> str:
    with store.create(recipe, run="run", iteration=1) as staging:
        (staging.path / "model").mkdir()
        (staging.path / "model" / "weights").write_text(content)
        return staging.commit(counters={"tokens": 3}, environment={"attention": "flash"}).manifest.artifact_id


def flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_what_is_committed_can_be_found_opened_and_verified(store_uri: str, recipe: Recipe) -> None:
    store = ArtifactStore(store_uri, threads=2)
    assert store.find(recipe.artifact_id) is None
    artifact_id = commit(store, recipe)
    assert artifact_id == recipe.artifact_id

    later = ArtifactStore(store_uri)
    artifact = later.open(artifact_id)
    assert artifact.path("model/weights").read_text() == "content"
    assert artifact.path("model").is_dir()
    assert [(entry.path, entry.bytes, entry.sha256) for entry in artifact.files] == [
        ("model/weights", 7, hashlib.sha256(b"content").hexdigest())
    ]
    manifest = artifact.manifest
    assert (manifest.stage, manifest.run, manifest.iteration) == ("evaluate", "run", 1)
    assert manifest.counters == {"tokens": 3}
    assert (manifest.environment["threads"], manifest.environment["attention"]) == (2, "flash")
    assert later.verify(artifact_id) == []
    assert later.find(artifact_id, "evaluate") == manifest
    assert later.find(artifact_id, "bootstrap") is None
    assert [m.artifact_id for m in later.list("evaluate")] == [artifact_id]


def test_leaving_without_a_commit_leaves_nothing(store_uri: str, recipe: Recipe) -> None:
    store = ArtifactStore(store_uri)
    with store.create(recipe, run="run", iteration=1) as staging:
        (staging.path / "file").write_text("x")
    assert list(store.list()) == []
    assert list(store.staging_folder.iterdir()) == []


def test_a_failing_stage_commits_nothing(store: ArtifactStore, recipe: Recipe) -> None:
    def stage() -> None:
        with store.create(recipe, run="run", iteration=1) as staging:
            (staging.path / "file").write_text("x")
            raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged"):
        stage()
    assert store.find(recipe.artifact_id) is None


def test_the_writing_of_a_killed_process_is_invisible_and_swept_up(
    store: ArtifactStore, recipe: Recipe
) -> None:
    program = (
        "import os, signal, sys\n"
        "from storage.artifacts.store import ArtifactStore\n"
        "from storage.artifacts.recipe import Recipe\n"
        "staging = ArtifactStore(sys.argv[1]).create(Recipe('evaluate', 1, {'samples': 2}, {}, 3),"
        " run='run', iteration=1)\n"
        "(staging.path / 'file').write_text('half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, store.uri], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len([each for each in store.staging_folder.iterdir() if each.is_dir()]) == 1
    assert store.find(recipe.artifact_id) is None
    assert list(store.list()) == []
    commit(store, recipe)
    assert list(store.staging_folder.iterdir()) == []


def test_of_two_writers_the_first_wins(store_uri: str, recipe: Recipe) -> None:
    store = ArtifactStore(store_uri)
    with (
        store.create(recipe, run="run", iteration=1) as one,
        store.create(recipe, run="run", iteration=1) as two,
    ):
        (one.path / "file").write_text("one")
        (two.path / "file").write_text("two")
        first, second = one.commit(counters={"n": 1}), two.commit(counters={"n": 2})
    assert first.manifest == second.manifest
    assert second.path("file").read_text() == "one"
    assert store.verify(recipe.artifact_id) == []


def test_many_threads_commit_one_artifact(store: ArtifactStore, recipe: Recipe) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda number: commit(store, recipe, str(number)), range(16)))
    assert ids == {recipe.artifact_id}
    assert ArtifactStore(store.uri).verify(recipe.artifact_id) == []
    assert list(store.staging_folder.iterdir()) == []


def test_a_flipped_byte_is_found(store: ArtifactStore, recipe: Recipe) -> None:
    artifact_id = commit(store, recipe)
    path = store.open(artifact_id).path("model/weights")
    flip_byte(path)
    later = ArtifactStore(store.uri)
    wanted, found = (hashlib.sha256(content).hexdigest() for content in (b"content", path.read_bytes()))
    with pytest.raises(DamagedArtifact, match=f"model/weights has SHA-256 {found}.* says {wanted}"):
        later.open(artifact_id)
    assert len(later.verify(artifact_id)) == 1
    assert len(store.verify(artifact_id)) == 1


def test_one_file_is_checked_without_the_others(store: ArtifactStore, recipe: Recipe) -> None:
    with store.create(recipe, run="run", iteration=1) as staging:
        (staging.path / "weights").write_bytes(b"weights")
        (staging.path / "record").write_bytes(b"record")
        path = staging.commit().path("weights")
    path.write_bytes(b"changed")
    fresh = ArtifactStore(store.uri)
    manifest = fresh.find(recipe.artifact_id)
    assert manifest is not None
    assert fresh.open_file(manifest, "record").read_bytes() == b"record"
    with pytest.raises(DamagedArtifact, match="weights has SHA-256"):
        fresh.open_file(manifest, "weights")
    with pytest.raises(InputError, match="has no notes; it has record, weights"):
        fresh.open_file(manifest, "notes")


def test_missing_and_strange_files_are_found(store: ArtifactStore, recipe: Recipe) -> None:
    artifact_id = commit(store, recipe)
    folder = store.open(artifact_id).path("model")
    (folder / "weights").rename(folder / "other")
    with pytest.raises(DamagedArtifact, match="weights is missing"):
        ArtifactStore(store.uri).open(artifact_id)
    missing, strange = store.verify(artifact_id)
    assert missing.endswith("weights is missing")
    assert strange.endswith("other is not in the manifest")


@pytest.mark.parametrize(
    ("before", "after"), [('"tokens": 3', '"tokens": 4'), ('"stage": "evaluate"', '"stage": "eval')]
)
def test_a_changed_manifest_is_found(store: ArtifactStore, recipe: Recipe, before: str, after: str) -> None:
    artifact_id = commit(store, recipe)
    path = Path(store.uri) / "artifacts" / "evaluate" / artifact_id / "manifest.json"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(DamagedArtifact, match="was changed after it was written"):
        store.find(artifact_id)
    assert "was changed after it was written" in store.verify(artifact_id)[0]


def test_a_manifest_of_another_version_is_not_taken_for_a_damaged_one(
    store: ArtifactStore, recipe: Recipe
) -> None:
    artifact_id = commit(store, recipe)
    path = Path(store.uri) / "artifacts" / "evaluate" / artifact_id / "manifest.json"
    earlier = {**json.loads(path.read_text()), "schema_version": 2, "manifest_sha256": "ab"}
    del earlier["seal"]
    path.write_text(json.dumps(earlier))
    told = "an earlier version .* schema version 2, and this program reads version 3.*train into a new store"
    with pytest.raises(StoreError, match=told) as caught:
        store.find(artifact_id)
    assert not isinstance(caught.value, DamagedArtifact)


def test_a_manifest_in_the_wrong_folder_is_found(store: ArtifactStore, recipe: Recipe) -> None:
    folder = Path(store.uri) / "artifacts" / "evaluate"
    (folder / commit(store, recipe)).rename(folder / ("0" * 32))
    with pytest.raises(DamagedArtifact, match=f"is the manifest of {recipe.artifact_id}"):
        store.open("0" * 32)


def test_a_discarded_artifact_can_be_made_again(store_uri: str, recipe: Recipe) -> None:
    store = ArtifactStore(store_uri)
    commit(store, recipe, "damaged")
    store.discard_damaged(recipe.artifact_id)
    assert store.find(recipe.artifact_id) is None
    commit(store, recipe, "whole")
    assert store.open(recipe.artifact_id).path("model/weights").read_text() == "whole"
    with pytest.raises(InputError, match="no artifact"):
        store.discard_damaged("0" * 32)


def test_a_damaged_download_is_made_again(recipe: Recipe, object_store_uri: str) -> None:
    store = ArtifactStore(object_store_uri)
    commit(store, recipe)
    flip_byte(store.open(recipe.artifact_id).path("model/weights"))
    later = ArtifactStore(store.uri)
    assert later.open(recipe.artifact_id).path("model/weights").read_text() == "content"


def test_a_folder_without_a_manifest_does_not_exist(store: ArtifactStore, recipe: Recipe) -> None:
    folder = Path(store.uri) / "artifacts" / "evaluate" / recipe.artifact_id
    folder.mkdir(parents=True)
    (folder / "file").write_text("from somewhere")
    assert store.find(recipe.artifact_id) is None
    assert commit(store, recipe) == recipe.artifact_id
    assert store.verify(recipe.artifact_id) == []


def test_rows_are_counted_and_checked(store: ArtifactStore, recipe: Recipe, trajectory: Trajectory) -> None:
    with store.create(recipe, run="run", iteration=1) as staging:
        write_trajectories(staging.path / "rows.parquet", [trajectory, trajectory])
        with pytest.raises(ValueError, match=r"rows\.parquet holds 2 rows, not 3"):
            staging.commit(rows={"rows.parquet": 3})
        with pytest.raises(ValueError, match=r"not written: other\.parquet"):
            staging.commit(rows={"other.parquet": 3})
        artifact = staging.commit(rows={"rows.parquet": 2})
    assert (artifact.files[0].rows, artifact.files[0].table) == (2, "trajectories")
    assert len(read_trajectories([artifact.path("rows.parquet")])) == 2


def test_a_missing_input_is_a_problem(store: ArtifactStore) -> None:
    artifact_id = commit(store, Recipe("evaluate", 1, {}, {"checkpoint": "f" * 32}, 0))
    assert store.verify(artifact_id) == [f"input checkpoint ({'f' * 32}) is not in the store"]


def test_ids_can_be_given_by_their_beginning(store: ArtifactStore) -> None:
    ids = [commit(store, Recipe("evaluate", 1, {}, {}, seed)) for seed in range(20)]
    assert store.resolve(ids[0]) == ids[0]
    assert store.resolve(ids[0][:12]) == ids[0]
    with pytest.raises(InputError, match="20 artifacts begin with ''"):
        store.resolve("")
    with pytest.raises(InputError, match="no artifact xyz"):
        store.resolve("xyz")


def test_unknown_names_are_refused(store: ArtifactStore, recipe: Recipe) -> None:
    with pytest.raises(InputError, match="no artifact abc in store"):
        store.open("abc")
    commit(store, recipe)
    with pytest.raises(InputError, match="has no tokens; it has model/weights"):
        store.open(recipe.artifact_id).path("tokens")


def test_a_store_that_cannot_be_written_is_said_to_be_so(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="choose another store"):
        ArtifactStore(str(tmp_path / "file")).create(recipe, run="run", iteration=1)


def test_files_are_hashed_once_for_a_store_object(store: ArtifactStore, recipe: Recipe) -> None:
    artifact_id = commit(store, recipe)
    path = store.open(artifact_id).path("model/weights")
    flip_byte(path)
    assert store.open(artifact_id).path("model/weights") == path
