from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.trajectories import read_trajectories
from tests.command_line.invoke import invoke
from tests.integration.runs import ROOT

CONFIG = ROOT / "configs" / "sokoban.yaml"
SMALL = (
    "iterations=2",
    "resources.threads=1",
    "environment.training_boards=64",
    "policy={type: tiny, layers: 2, cold_start: {steps: 30, demonstrations_per_step: 16, gate: 0}}",
    "rollouts={tasks_per_iteration: 4, group_size: 4, tasks_per_shard: 2}",
    "evaluation={tasks: 8}",
)
"""Settings that make the run take seconds; its policy is too weak to learn anything."""


@pytest.mark.slow
def test_the_configuration_trains_by_erl(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = [word for setting in SMALL for word in ("--set", setting)]
    training = invoke("train", CONFIG, "--store", store, "--no-prefect", *options)
    assert training.status == 0, training.errors

    artifacts = ArtifactStore(str(store))
    shards = [
        entry for entry in RunStore(str(store)).open("sokoban").stages() if entry.kind == "trajectories"
    ]
    rows = read_trajectories(
        [artifacts.open(shard.artifact_id).path("trajectories.parquet") for shard in shards]
    )
    assert {row.environment for row in rows} == {"sokoban"}
    assert {row.task_type for row in rows} == {"sokoban-5x5", "sokoban-6x6"}
    first = [row for row in rows if row.role == "first_attempt"]
    assert len(first) >= 2 * 4 * 4  # two iterations, four tasks, four samples
    for row in first:
        # All boards have one box, which is on its goal at the end if and only if the attempt succeeded.
        metrics = json.loads(row.metrics)
        assert metrics["boxes_on_goals"] == row.reward
        assert metrics["deadlock"] == float(row.feedback == "stuck")
        assert metrics["pushes"] + metrics["moves_without_effect"] <= 8
