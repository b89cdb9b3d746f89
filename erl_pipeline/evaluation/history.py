"""What a run has done so far, read from its ledger and the manifests of its artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.run import Run

EVALUATIONS = frozenset({"evaluate", "evaluate_on_request"})
"""Stages that train nothing. The second holds evaluations on tasks that are not the run's own."""


@dataclass(frozen=True)
class StageRecord:
    """One committed artifact of a run. `iteration` is 0 for what came before the first iteration; `key`
    tells apart the shards of a stage. `reused` says that the artifact was there before it was asked for."""

    iteration: int
    stage: str
    key: str
    reused: bool
    manifest: Manifest

    @property
    def seconds(self) -> float:
        """Wall time that the artifact took to make, whenever and by whichever run that was."""
        return (self.manifest.finished_at - self.manifest.started_at).total_seconds()

    def number(self, name: str) -> float | None:
        """A counter or metric of the manifest; None where the stage did not report it."""
        value = self.manifest.counters.get(name, self.manifest.metrics.get(name))
        return float(value) if isinstance(value, int | float) else None

    def required_number(self, name: str) -> float:
        """Like `number`; raises KeyError where the stage always reports it and did not."""
        value = self.number(name)
        if value is None:
            raise KeyError(f"artifact {self.manifest.artifact_id} of stage {self.stage} has no number {name}")
        return value


@dataclass(frozen=True)
class CurvePoint:
    """Held-out success of greedy first attempts after `iteration` with its 95 % interval, and what
    training had spent by then. Seconds are those of the iterations' stages without evaluations."""

    iteration: int
    success: float
    low: float
    high: float
    generated_tokens: int
    episodes: int
    optimizer_steps: int
    seconds: float


def read_history(store: ArtifactStore, run: Run) -> list[StageRecord]:
    """The run's artifacts in the order of iteration and ledger.

    Raises StoreError when an artifact that the ledger names is not in the store.
    """
    records = []
    for entry in run.stages():
        manifest = store.find(entry.artifact_id, entry.stage)
        if manifest is None:
            raise StoreError(
                f"run {run.name}: artifact {entry.artifact_id} of stage {entry.stage} is not in the store; "
                "`erl-pipeline train CONFIG --check` makes it again"
            )
        records.append(StageRecord(entry.iteration or 0, entry.stage, entry.key, entry.reused, manifest))
    return sorted(records, key=lambda record: record.iteration)


def of_stage(history: Sequence[StageRecord], stage: str) -> list[StageRecord]:
    """The records of one stage, by iteration."""
    return [record for record in history if record.stage == stage]


def training_cost(history: Sequence[StageRecord], name: str, up_to: int) -> float:
    """A counter summed over all training stages of the iterations 1 to `up_to`.

    Shards are left out, since `generate_rollouts` counts them again, and evaluations, which train nothing.
    """
    return sum(
        record.number(name) or 0
        for record in history
        if record.stage not in {"rollout_shard", *EVALUATIONS} and 1 <= record.iteration <= up_to
    )


def learning_curve(history: Sequence[StageRecord]) -> list[CurvePoint]:
    """One point for each evaluation on the run's held-out tasks."""
    points = []
    for record in of_stage(history, "evaluate"):
        trained = [r for r in history if 1 <= r.iteration <= record.iteration and r.stage not in EVALUATIONS]
        points.append(
            CurvePoint(
                iteration=record.iteration,
                success=record.required_number("greedy_success"),
                low=record.required_number("greedy_success_low"),
                high=record.required_number("greedy_success_high"),
                generated_tokens=int(training_cost(history, "generated_tokens", record.iteration)),
                episodes=int(training_cost(history, "episodes", record.iteration)),
                optimizer_steps=int(training_cost(history, "optimizer_steps", record.iteration)),
                seconds=sum(r.seconds for r in trained),
            )
        )
    return points
