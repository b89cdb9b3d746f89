"""A store with training records, written by hand, so that answers about them can be seen by reading it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.artifacts.store import ArtifactStore
from storage.runs.run import Run, RunStore
from storage.tables.parquet import write_rows
from storage.tables.training import (
    REINFORCEMENT,
    SFT,
    SUPERVISED,
    TRAINING_RECORD,
    TRAINING_RECORD_FILE,
    write_training_record,
)
from storage.tables.trajectories import TRAJECTORIES
from tests.histories import sft_row, trajectory_row

CONFIG = {"name": "run", "environment": {"type": "frozen_lake"}, "policy": {"type": "tiny"}}


def record_row(**given: Any) -> dict[str, Any]:
    """Columns of a row of a training record; values that are not given are those of a trained first
    attempt."""
    trained = given.get("not_trained") is None
    row = {
        "trajectory_id": "first",
        "kind": REINFORCEMENT,
        "episode_id": "episode",
        "task_id": "t1",
        "task_type": "lake-4x4",
        "role": "first_attempt",
        "iteration": 1,
        "policy_version": "policy",
        "weight": 1.0,
        "steps": 1 if trained else 0,
        "trained_tokens": 3 if trained else 0,
        **given,
    }
    return {name: row.get(name) for name in TRAINING_RECORD.schema.names}


@dataclass
class TrainingStore:
    """A store under construction; `ids` maps the name of each committed artifact to its id."""

    store: ArtifactStore
    runs: RunStore
    ids: dict[str, str] = field(default_factory=dict)

    def run(self, name: str) -> Run:
        return self.runs.open(name) if name in self.runs.list() else self.runs.create(name, CONFIG)

    def commit(
        self,
        name: str,
        kind: ArtifactKind,
        iteration: int | None = 1,
        inputs: Mapping[str, str] | None = None,
        write: Callable[[Path], object] = lambda folder: None,
        *,
        run: str = "run",
        **counters: int,
    ) -> str:
        """Commit an artifact whose inputs are named, and put it into a run's ledger."""
        used = {key: self.ids[value] for key, value in (inputs or {}).items()}
        recipe = Recipe(_stage_of(name), 1, {"name": name}, used, 0, kind=kind)
        with self.store.create(recipe, run=run, iteration=iteration) as staging:
            write(staging.path)
            staging.commit(counters=counters)
        self.record(name, recipe.artifact_id, kind, iteration, run)
        return recipe.artifact_id

    def record(
        self, name: str, artifact_id: str, kind: ArtifactKind, iteration: int | None, run: str
    ) -> None:
        self.ids[name] = artifact_id
        stage = _stage_of(name)
        key = name.removeprefix(stage)
        self.run(run).record(iteration, stage, artifact_id, kind=kind, key=key, reused=False, seconds=0.0)


def _stage_of(name: str) -> str:
    return name.rstrip("-0123456789")


def trajectories(*rows: Mapping[str, Any]) -> Callable[[Path], object]:
    """Writes trajectories; `says` is what the policy said."""

    def columns(row: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(row)
        said = given.pop("says", "")
        messages = [{"role": "user", "content": "right?"}, {"role": "assistant", "content": said}]
        return trajectory_row(**{"messages": json.dumps(messages), **given})

    return lambda folder: write_rows(
        folder / "trajectories.parquet", [columns(row) for row in rows], TRAJECTORIES
    )


def record(*rows: Mapping[str, Any]) -> Callable[[Path], object]:
    """Writes a training record, together with weights."""

    def write(folder: Path) -> None:
        (folder / "weights").write_bytes(b"weights")
        write_training_record(folder / TRAINING_RECORD_FILE, [record_row(**row) for row in rows])

    return write


FIRST = {"trajectory_id": "first"}
REFLECTION = {"trajectory_id": "reflection", "role": "reflection", "reward": 1.0, "success": True}
SECOND = {"trajectory_id": "second", "role": "second_attempt", "reward": 1.0, "success": True}
ZERO = {"not_trained": "zero_advantage"}


def write_training_store(uri: str) -> TrainingStore:
    """Two iterations of run `run`, and run `offline`.

    Iteration 1: an episode of `t1` says "left", "go right", "right"; an update trains on its last two
    trajectories, and a fine-tuning on an SFT row of the last. Iteration 2: an episode of `t2` with one
    attempt, which is trained. `offline` begins with the policy of iteration 1 and trains on the rollouts of
    iteration 2.
    """
    made = TrainingStore(ArtifactStore(uri), RunStore(uri))
    made.commit("bootstrap", "checkpoint", None)
    made.commit(
        "shard",
        "trajectories",
        inputs={"checkpoint": "bootstrap"},
        write=trajectories(
            {**FIRST, "says": "left"},
            {**REFLECTION, "parent_trajectory_id": "first", "says": "go\nright", "text": "go right"},
            {**SECOND, "parent_trajectory_id": "reflection", "says": "right"},
        ),
    )
    counts: dict[str, Any] = {
        f"{role}_{what}": 1 for role in ("first_attempt", "reflection") for what in ("count", "successes")
    }
    counts |= {"second_attempt_count": 1, "second_attempt_successes": 1}
    made.commit("rollouts", "rollouts", inputs={"shard-0000": "shard"}, **counts)
    made.commit(
        "update",
        "checkpoint",
        inputs={"checkpoint": "bootstrap", "rollouts": "rollouts"},
        write=record(
            {**FIRST, **ZERO, "reward": 0.0, "success": False, "advantage": 0.0},
            {**REFLECTION, "advantage": 0.5, "loss": -0.25},
            {**SECOND, "advantage": 0.5, "loss": -0.25},
        ),
        sequences=2,
        dropped_zero_advantage=1,
        trained_tokens=6,
    )
    made.commit(
        "dataset",
        "sft_dataset",
        inputs={"rollouts": "rollouts"},
        write=lambda folder: write_rows(folder / "sft.parquet", [sft_row("s-second", "second")], SFT),
    )
    made.commit(
        "tuned",
        "checkpoint",
        inputs={"checkpoint": "update", "dataset": "dataset"},
        write=record(
            {**SECOND, "kind": SUPERVISED, "sft_row_id": "s-second", "role": "distilled"} | NO_REWARD
        ),
        rows=1,
        trained_tokens=3,
    )
    later = {"trajectory_id": "first-2", "task_id": "t2", "episode_id": "episode-2", "iteration": 2}
    made.commit(
        "shard-2",
        "trajectories",
        2,
        inputs={"checkpoint": "tuned"},
        write=trajectories({**later, "says": "up"}),
    )
    made.commit(
        "rollouts-2",
        "rollouts",
        2,
        inputs={"shard-0000": "shard-2"},
        first_attempt_count=1,
        first_attempt_successes=0,
    )
    given = {**later, "reward": 0.0, "success": False, "advantage": -0.5}
    for run, iteration, name in (("run", 2, "update-2"), ("offline", 1, "offline")):
        made.commit(
            name,
            "checkpoint",
            iteration,
            inputs={"checkpoint": "tuned", "rollouts": "rollouts-2"},
            write=record(given),
            run=run,
            sequences=1,
            trained_tokens=3,
        )
    return made


NO_REWARD = {"reward": None, "success": None}


def write_replay(made: TrainingStore) -> None:
    """Iteration 3 of run `run`: an update on one fresh attempt, `third`, and on `copy`, the replayed second
    attempt of iteration 1, which came out of a store of experience."""
    third = {"trajectory_id": "third", "episode_id": "episode-3", "task_id": "t3", "iteration": 3}
    copy = {"trajectory_id": "copy", "role": "replay", "reward": 1.0, "success": True}
    made.commit(
        "shard-3",
        "trajectories",
        3,
        inputs={"checkpoint": "update-2"},
        write=trajectories({**third, "says": "down"}),
    )
    counts: dict[str, Any] = {"first_attempt_count": 1, "first_attempt_successes": 0}
    made.commit("rollouts-3", "rollouts", 3, inputs={"shard-0000": "shard-3"}, **counts)
    made.commit("experience", "experience", 2, inputs={"rollouts": "rollouts"})
    made.commit(
        "replay-3",
        "replay",
        3,
        inputs={"checkpoint": "update-2", "experience": "experience"},
        write=trajectories({**copy, "parent_trajectory_id": "second", "says": "right"}),
    )
    made.commit(
        "update-3",
        "checkpoint",
        3,
        inputs={"checkpoint": "update-2", "rollouts": "rollouts-3", "replay": "replay-3"},
        write=record({**third, "advantage": -0.25}, {**copy, "advantage": 0.25}),
        sequences=2,
        trained_tokens=6,
    )
