"""Runs whose supervised half has a window, a threshold, and moments of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.plan.plan import StageKey
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.audit import audit
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.training import read_sft_rows
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import go, hashes, ids, small

# The policy has learned little more than to end its turns; with this threshold failures are distilled too.
EVERYTHING = -1.0
CHANGES: dict[str, Any] = {
    "policy": {
        "type": "tiny",
        "layers": 1,
        "cold_start": {"steps": 60, "demonstrations_per_step": 8, "gate": 0},
    },
    "rollouts": {"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 1},
    "method": "rlvr",
    "distillation": {"form": "separate", "window": 2, "reward_above": EVERYTHING},
    "optimizer": {"moments": "by_use"},
    "fine_tune": {"steps": 9, "batch_rows": 2, "epochs": 1.0, "learning_rate": 1e-3},
}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three iterations; it must not be changed."""
    store = tmp_path_factory.mktemp("windowed") / "store"
    go(small(**CHANGES), store, 3)
    return store


def manifest(store: Path, iteration: int, stage: str) -> Manifest:
    return ArtifactStore(str(store)).open(ids(store)[StageKey(iteration, stage, "")]).manifest


def test_each_row_of_the_window_is_trained_once(windowed: Path) -> None:
    made = {iteration: manifest(windowed, iteration, "build_distillation") for iteration in (1, 2, 3)}
    tuned = manifest(windowed, 3, "fine_tune")
    rows = {iteration: int(each.counters["sft_rows"]) for iteration, each in made.items()}
    assert min(rows.values()) > 0
    assert [made[2].artifact_id, made[3].artifact_id] == [
        tuned.inputs["dataset-0001"],
        tuned.inputs["dataset"],
    ]
    assert tuned.counters["rows"] == rows[2] + rows[3]
    # Two rows a step, once.
    assert tuned.counters["optimizer_steps"] == (rows[2] + rows[3] + 1) // 2
    artifacts = ArtifactStore(str(windowed))
    files = [artifacts.open(each.artifact_id).path("sft.parquet") for each in made.values()]
    assert len({row.episode_id for row in read_sft_rows(files)}) == sum(rows.values())
    assert verify_run(artifacts, RunStore(str(windowed)).open("small")).problems == []


def test_a_run_that_is_stopped_between_its_updates_goes_on_to_the_same_bytes(
    windowed: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    for stage in ("update_policy", "build_distillation"):
        go(small(**CHANGES), store, 3, stop_after=f"{stage} of iteration 2")
    go(small(**CHANGES), store, 2)
    go(small(**CHANGES), store, 3)
    assert hashes(store) == hashes(windowed)


def test_an_audit_gives_a_window_the_bytes_that_it_had(windowed: Path, tmp_path: Path) -> None:
    results = audit(
        str(windowed),
        "small",
        3,
        "update_policy",
        3,
        tmp_path / "scratch",
        Listener(),
        threading.Event(),
    )
    assert {(each.stage, each.verdict) for each in results} == {
        ("update_policy", "equal"),
        ("build_distillation", "equal"),
        ("fine_tune", "equal"),
        ("evaluate", "equal"),
    }
