"""Stages computed in a test's store, from inputs that the test has written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import StageJob, compute
from erl_pipeline.plan.stage import Listener, Resources, Stage, StageProgress, WorkerSettings
from storage.artifacts.artifact import Artifact
from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.memory.view import ReflectionMemory
from storage.tables.trajectories import Trajectory, write_trajectories
from tests.embedders import WordEmbedder


def written(rows: Sequence[Trajectory]) -> Callable[[Path], object]:
    """Write these rows as a shard."""
    return lambda folder: write_trajectories(folder / "trajectories.parquet", rows)


class Bench:
    """A store, and a worker that computes stages in it. The embedding model `words` needs no weights.

    `trainer`: operational settings of the trainer.
    """

    def __init__(self, folder: Path, trainer: Mapping[str, Any] | None = None) -> None:
        self._worker = WorkerSettings(str(folder / "store"), "run", threads=1, trainer=dict(trainer or {}))
        self.resources = Resources(self._worker)
        self.store = self.resources.store
        self.resources.keep(
            "memory words",
            lambda: ReflectionMemory(self.store.uri, "run", self.store, WordEmbedder()),
        )

    def compute(
        self,
        stage: Stage[Any],
        settings: Settings,
        inputs: Mapping[str, str] | None = None,
        locations: Mapping[str, str] | None = None,
        **index: int,
    ) -> Artifact:
        """The artifact of a stage."""
        recipe = Recipe(
            stage=stage.name,
            stage_version=stage.version,
            settings=settings.model_dump(mode="json"),
            inputs=inputs or {},
            seed=0,
            index=index,
            kind=stage.output,
        )
        planned = PlannedStage(stage, settings, recipe, 1, "", recipe.artifact_id, locations or {})
        compute(StageJob(planned, self._worker), self.resources, StageProgress("", Listener(), Event()))
        return self.store.open(recipe.artifact_id)

    def commit(
        self,
        name: str,
        kind: ArtifactKind,
        write: Callable[[Path], object] = lambda _folder: None,
        inputs: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        counters: Mapping[str, int] | None = None,
    ) -> str:
        """Commit an artifact that no stage made; returns its id."""
        recipe = Recipe(name, 1, settings or {"name": name}, inputs or {}, 0, kind=kind)
        with self.store.create(recipe, run="run", iteration=1) as staging:
            write(staging.path)
            staging.commit(counters=dict(counters or {}))
        return recipe.artifact_id

    def rollouts(self, *shards: Sequence[Trajectory]) -> str:
        """The list of an iteration's shards."""
        made = {}
        for number, rows in enumerate(shards):
            made[f"shard-{number:04d}"] = self.commit(
                f"shard-{rows[0].trajectory_id if rows else number}",
                "trajectories",
                written(rows),
            )
        return self.commit(f"rollouts-{'-'.join(made.values())}"[:60], "rollouts", inputs=made)
