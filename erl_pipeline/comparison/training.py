"""What happened in the training of a run: mean rewards by role, and numbers of the rollouts that its method
has columns for, such as the success of retries and their gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from erl_pipeline.comparison.measures import SeedSummary, across_seeds
from erl_pipeline.evaluation.history import StageRecord, of_kind
from erl_pipeline.plan.column import Column
from storage.artifacts.store import ArtifactStore
from storage.tables.scored import was_scored
from storage.tables.trajectories import scan_trajectories

ByIteration = Mapping[int, float]

_ROWS = "trajectories"
"""The table of an artifact that has a row for each trajectory."""


@dataclass(frozen=True)
class TrainingFigures:
    """Numbers of one run by iteration: `rewards` by role, `numbers` by the name of a column."""

    rewards: Mapping[str, ByIteration]
    numbers: Mapping[str, ByIteration]


@dataclass(frozen=True)
class Thirds:
    """A number early and late in training: its mean over the first and over the last third of the iterations,
    summarised over seeds. A seed without the number in a third does not count there; None if no seed has
    it."""

    first: SeedSummary | None
    last: SeedSummary | None


def shown_columns(columns: Sequence[Column], history: Sequence[StageRecord]) -> list[Column]:
    """The rollout columns that comparisons of runs show, without sums, which are shown as costs elsewhere."""
    stages = {record.stage for record in of_kind(history, "rollouts")}
    return [each for each in columns if each.stage in stages and each.compare and not each.adds_up]


def training_figures(
    store: ArtifactStore, history: Sequence[StageRecord], columns: Sequence[Column], iterations: int
) -> TrainingFigures:
    """Read the figures from the manifests and the trajectories of the first `iterations`.

    Raises StoreError for trajectories that are damaged or missing.
    """
    rollouts = [record for record in of_kind(history, "rollouts") if record.iteration <= iterations]
    numbers = {
        column.name: {
            record.iteration: value for record in rollouts if (value := record.value(column)) is not None
        }
        for column in shown_columns(columns, history)
    }
    return TrainingFigures(_rewards(store, rollouts), numbers)


def thirds(seeds: Sequence[ByIteration], iterations: int) -> Thirds:
    """A number of several seeds, early and late in training."""
    length = max(1, iterations // 3)
    return Thirds(
        _mean_over(seeds, range(1, length + 1)),
        _mean_over(seeds, range(iterations - length + 1, iterations + 1)),
    )


def _mean_over(seeds: Sequence[ByIteration], iterations: range) -> SeedSummary | None:
    means = []
    for values in seeds:
        inside = [values[each] for each in iterations if each in values]
        if inside:
            means.append(sum(inside) / len(inside))
    return across_seeds(means) if means else None


def _rewards(store: ArtifactStore, rollouts: Sequence[StageRecord]) -> dict[str, ByIteration]:
    shards = [store.open(shard) for record in rollouts for shard in record.manifest.inputs.values()]
    paths = [shard.rows_path(file.path) for shard in shards for file in shard.files if file.table == _ROWS]
    if not paths:
        return {}
    reward = pl.col("reward").cast(pl.Float64).mean()
    rows = scan_trajectories(paths).filter(was_scored())
    means = rows.group_by("role", "iteration").agg(reward).sort("iteration").collect()
    return {
        role: dict(means.filter(pl.col("role") == role).select("iteration", "reward").iter_rows())
        for role in sorted(means["role"].unique())
    }
