"""A disk that fills up: this is reported before a run begins, and before each iteration."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from erl_pipeline.plan.plan import StageKey
from storage.errors import StoreError
from tests.erl_pipeline.runs.small_runs import Notes, go, ids, small

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Set the number of bytes that are reported as free."""
    room = {"bytes": 10**12}
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(10**12, 0, room["bytes"]))
    return room


def size_of_iteration(store: Path) -> int:
    folders = [
        store / "artifacts" / place.stage / artifact_id
        for place, artifact_id in ids(store).items()
        if place.iteration == 2
    ]
    files = [path for folder in folders for path in folder.rglob("*") if path.name != "manifest.json"]
    return sum(path.stat().st_size for path in files if path.is_file())


def test_a_run_whose_next_iteration_does_not_fit_is_not_begun(store: Path, free: dict[str, int]) -> None:
    free["bytes"] = size_of_iteration(store) // 2
    before = ids(store)
    with pytest.raises(StoreError, match=r"the disk would be full: iteration 3 needs about .* are free at"):
        go(small(), store, 3)
    assert ids(store) == before
    notes = go(small(resources={"threads": 1, "full_disk": "warn"}), store, 3)
    assert notes.warnings[0].startswith("the disk would be full: iteration 3 needs about ")
    assert notes.made


def test_a_run_that_will_not_fit_as_a_whole_is_warned_of(store: Path, free: dict[str, int]) -> None:
    free["bytes"] = size_of_iteration(store) * 2
    (warning,) = go(small(), store, 5).warnings
    assert warning.startswith("the run to iteration 5 needs about ")
    assert "set retention.checkpoints and retention.optimizer" in warning


def test_retention_makes_room(store: Path, free: dict[str, int]) -> None:
    free["bytes"] = size_of_iteration(store) * 2 + 100_000
    assert go(small(retention={"checkpoints": 1, "optimizer": 1}), store, 5).warnings == []


def test_a_disk_that_fills_up_stops_the_run_before_the_next_iteration(
    store: Path, free: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(notes: Notes, title: str, outcome: object) -> None:
        if title == "build_distillation of iteration 3":
            free["bytes"] = 1000

    monkeypatch.setattr(Notes, "stage_finished", filled)
    with pytest.raises(StoreError, match="iteration 4 needs about"):
        go(small(), store, 5)
    assert StageKey(3, "fine_tune", "") in ids(store)
