"""The first writer wins, and a local store holds the bytes of files that an artifact repeats once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.artifacts.writing import publish_folder
from storage.errors import NotRepeated
from storage.runs.run import RunStore
from storage.tables.agent_calls import AgentCall, write_agent_calls
from storage.upkeep.collection import plan_collection


def commit(store: ArtifactStore, name: str, files: dict[str, str], source: str = "") -> str:
    inputs = {"checkpoint": source} if source else {}
    with store.create(Recipe(name, 1, {}, inputs, 0), run="run", iteration=1) as staging:
        for path, content in files.items():
            (staging.path / path).parent.mkdir(exist_ok=True)
            (staging.path / path).write_text(content)
        return staging.commit(unchanged_from=source).manifest.artifact_id


def inodes(store: ArtifactStore, artifact_id: str) -> dict[str, int]:
    folder = ArtifactStore(store.uri).open(artifact_id).present_folder
    return {path: (folder / path).stat().st_ino for path in ("model/weights", "optimizer", "record")}


def test_equal_files_are_stored_once_and_others_are_not(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    first = commit(store, "update", {"model/weights": "w" * 9000, "optimizer": "o" * 500, "record": "1"})
    second = commit(
        store, "tune", {"model/weights": "w" * 9000, "optimizer": "o" * 500, "record": "2"}, first
    )
    one, two = inodes(store, first), inodes(store, second)
    assert [path for path in one if one[path] == two[path]] == ["model/weights", "optimizer"]
    assert store.verify(first) == store.verify(second) == []
    run = RunStore(store.uri).create("run", {})
    for stage, artifact_id in (("update", first), ("tune", second)):
        run.record(1, stage, artifact_id, kind="checkpoint", reused=False, seconds=0.0)
    files = [path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]
    apart = sum(path.stat().st_size for path in files)
    assert plan_collection(store.uri, timedelta(hours=1)).reached_bytes == apart - 9500


def test_either_can_be_pruned_alone(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    files = {"model/weights": "w" * 9000, "optimizer": "o", "record": "1"}
    first = commit(store, "update", files)
    second = commit(store, "tune", files, first)
    store.prune(first, ["model/weights"], "a rule")
    whole = ArtifactStore(str(tmp_path)).open(second)
    assert whole.path("model/weights").read_text() == "w" * 9000
    third = commit(store, "tune-again", files, first)
    assert inodes(store, third)["model/weights"] != inodes(store, second)["model/weights"]


def test_what_was_removed_comes_back_with_its_bytes_and_with_no_others(tmp_path: Path) -> None:
    """Later artifacts were made from the committed bytes, whatever the processor computes today."""
    store = ArtifactStore(str(tmp_path), threads=1)
    files = {"model/weights": "w" * 9000, "record": "1"}
    made = commit(store, "update", files)
    store.prune(made, ["model/weights"], "a rule")
    manifest = store.open(made).manifest
    with pytest.raises(NotRepeated, match=r"\(update\) was computed again, .*committed with 1 on "):
        commit(store, "update", {"model/weights": "v" * 9000, "record": "1"})
    there = ArtifactStore(str(tmp_path)).open(made)
    assert there.manifest == manifest
    assert there.pruned.of("model/weights") is not None
    assert commit(store, "update", files) == made
    assert store.open(made).path("model/weights").read_text() == "w" * 9000
    assert store.verify(made) == []


def test_measured_times_may_differ_when_files_come_back(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))

    def played(seconds: float, calls: int = 1) -> str:
        with store.create(Recipe("rollouts", 1, {}, {}, 0), run="run", iteration=1) as staging:
            call = AgentCall(
                *("a", "c", 0, "chat", 0, 0, 1, "stop", False, None, (), None), seconds, 0.0, 0.0
            )
            write_agent_calls(staging.path / "agent_calls.parquet", [call] * calls)
            (staging.path / "rows").write_text("the same")
            return staging.commit().manifest.artifact_id

    made = played(1.0)
    store.prune(made, ["rows", "agent_calls.parquet"], "a rule")
    with pytest.raises(NotRepeated):
        played(1.0, calls=2)
    assert played(2.0) == made
    assert store.verify(made) == []
    assert store.open(made).path("rows").read_text() == "the same"


def test_damage_is_not_taken_over(tmp_path: Path) -> None:
    store = ArtifactStore(str(tmp_path))
    files = {"model/weights": "w" * 9000, "optimizer": "o", "record": "1"}
    first = commit(store, "update", files)
    # The store object has verified it before it was damaged.
    (store.open(first).present_folder / "model" / "weights").write_text("v" * 9000)
    second = commit(store, "tune", files, first)
    assert store.verify(second) == []
    assert len(store.verify(first)) == 1


def test_the_first_folder_published_stays(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    target = tmp_path / "parent" / "target"
    assert publish_folder(tmp_path / "one", target)
    assert not publish_folder(tmp_path / "two", target)
    assert (target / "file").read_text() == "one"
