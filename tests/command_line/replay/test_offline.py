"""Offline training, each on a copy of one small run."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from storage.artifacts.store import ArtifactStore
from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.replay.stores import entries, replay


def test_offline_training_takes_stored_rollouts_and_generates_none(store: Path) -> None:
    result = replay(
        store, "small", "--offline", "--iteration", "1..2", "--name", "offline", "--checkpoint", "latest"
    )
    assert result.status == 0, result.errors
    ours, theirs = entries(store, "small"), entries(store, "offline")
    assert {stage for _, stage, _ in theirs} == {
        "prepare_tasks",
        "bootstrap",
        "rollout_shard",
        "generate_rollouts",
        "measure_staleness",
        "update_policy",
        "build_distillation",
        "fine_tune",
        "evaluate",
    }
    shared = [place for place in theirs if place[1] in ("rollout_shard", "generate_rollouts")]
    assert {place: theirs[place] for place in shared} == {place: ours[place] for place in shared}
    assert theirs[1, "update_policy", ""] != ours[1, "update_policy", ""]

    artifacts = ArtifactStore(str(store))
    update = artifacts.open(theirs[1, "update_policy", ""]).manifest
    assert update.inputs["checkpoint"] == ours[2, "fine_tune", ""]
    assert update.settings["objective"]["correction"]["type"] == "decoupled"
    # Two iterations of update and fine-tuning lie between the first policy and the last.
    first, second = result.json["staleness"]
    assert (first["age_mean"], first["age_max"], first["age_unknown"]) == (4.0, 4, 0)
    assert (second["age_mean"], second["age_max"]) == (4.0, 4)
    assert 0 < first["effective_sample_size"] < 1
    assert 0 < first["effective_sample_size_capped"] <= 1
    staleness = pl.read_parquet(artifacts.open(theirs[1, "measure_staleness", ""]).path("staleness.parquet"))
    assert staleness["tokens"].sum() == first["trained_tokens"]
    assert set(staleness["policy_version"]) == {ours[0, "bootstrap", ""]}
    assert invoke("lineage", "verify", "offline", "--store", store).status == 0


def test_on_its_own_first_iteration_offline_training_is_on_policy(store: Path) -> None:
    result = replay(store, "small", "--offline", "--iteration", "1..1", "--name", "own", "--no-evaluation")
    assert result.status == 0, result.errors
    [staleness] = result.json["staleness"]
    assert (staleness["age_mean"], staleness["capped"]) == (0.0, 0.0)
    assert staleness["effective_sample_size"] == pytest.approx(1.0, abs=1e-6)
    assert not [place for place in entries(store, "own") if place[1] == "evaluate"]
    again = replay(store, "small", "--offline", "--iteration", "1..1", "--name", "own")
    assert again.status == 2
    assert (
        "was begun on the stored rollouts of iterations 1..1 of small, without evaluation, not"
        in again.errors
    )


def test_offline_training_without_correction_is_refused(finished: FinishedRun) -> None:
    words = ["--offline", "--iteration", "1..2", "--name", "x", "--set", "objective.correction.type=bypass"]
    result = replay(finished.store, "small", *words)
    assert result.status == 2
    assert "objective.correction.type: bypass cannot be trained offline" in result.errors
