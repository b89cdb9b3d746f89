"""What became of memory entries: when they were retrieved, and how the attempts after that went.

All of it is derived from the trajectories and memory versions in Parquet; nothing is counted in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from storage.artifacts.store import ArtifactStore
from storage.memory.chain import Delta, scan_entries, scan_removed
from storage.runs.run import Run
from storage.tables.trajectories import scan_trajectories

_NEEDED = [
    "trajectory_id",
    "parent_trajectory_id",
    "role",
    "iteration",
    "task_id",
    "task_type",
    "success",
    "memory_version",
    "memory_entry_ids",
]


@dataclass(frozen=True)
class Outcomes:
    """Attempts that followed a search of the memory: for each task whether each of them succeeded."""

    by_task: dict[str, list[bool]]

    @property
    def attempts(self) -> int:
        return sum(len(each) for each in self.by_task.values())

    @property
    def successes(self) -> int:
        return sum(sum(each) for each in self.by_task.values())


@dataclass(frozen=True)
class Comparison:
    """Attempts that followed a trajectory which saw memory, and others.

    The two were not assigned at random: what is retrieved depends on the task and the failure, and policies
    change from iteration to iteration, so a difference is a hint and no proof.
    """

    with_memory: Outcomes
    without: Outcomes
    without_same_iterations: Outcomes
    """Those of `without` that an equal policy made: in iterations in which there are some with memory."""


def rollout_files(store: ArtifactStore, run: Run) -> list[Path]:
    """The trajectories that a run's rollouts have in Parquet; each artifact is verified."""
    artifacts = [store.open(entry.artifact_id) for entry in run.stages() if entry.kind == "trajectories"]
    return [
        artifact.rows_path(entry.path)
        for artifact in artifacts
        for entry in artifact.files
        if entry.table == "trajectories"
    ]


def memory_searches(files: Sequence[Path]) -> pl.DataFrame:
    """One row for each trajectory in files of a role that retrieves from memory, in order.

    Columns: trajectory_id, iteration, task_id, task_type, memory_version, memory_entry_ids, and `success` of
    the trajectory that followed it, null where none did.
    """
    rows = scan_trajectories(files).select(_NEEDED)
    retrieved = rows.filter(pl.col("memory_entry_ids").list.len() > 0)
    roles = retrieved.select(pl.col("role").unique()).collect()["role"]
    attempts = rows.filter(pl.col("parent_trajectory_id").is_not_null())
    attempts = attempts.select("parent_trajectory_id", "success")
    return (
        rows.filter(pl.col("role").is_in(roles.implode()))
        .drop("role", "success", "parent_trajectory_id")
        .join(
            attempts,
            left_on="trajectory_id",
            right_on="parent_trajectory_id",
            how="left",
            maintain_order="left",
        )
        .collect()
    )


def retrieval_counts(seen: pl.DataFrame) -> pl.DataFrame:
    """How often each entry stood in a prompt: entry_id, iteration, memory_version, retrievals; in order."""
    return (
        seen.lazy()
        .select("iteration", "memory_version", entry_id="memory_entry_ids")
        .explode("entry_id")
        .drop_nulls("entry_id")
        .group_by("entry_id", "iteration", "memory_version")
        .agg(retrievals=pl.len())
        .sort("entry_id", "iteration", "memory_version")
        .collect()
    )


def compare(seen: pl.DataFrame, entry_id: str | None) -> Comparison:
    """Attempts that followed trajectories which saw an entry, against others on the same tasks.

    Without `entry_id`: that saw any entry, against those that saw none, whatever their tasks: in one
    iteration nearly all or none see memory.
    """
    saw = (
        pl.col("memory_entry_ids").list.len() > 0
        if entry_id is None
        else pl.col("memory_entry_ids").list.contains(entry_id)
    )
    tried = seen.filter(pl.col("success").is_not_null()).with_columns(saw=saw)
    with_memory = tried.filter("saw")
    others = tried.filter(~pl.col("saw"))
    if entry_id is not None:
        others = others.filter(pl.col("task_id").is_in(with_memory["task_id"].unique().implode()))
    same = others.filter(pl.col("iteration").is_in(with_memory["iteration"].unique().implode()))
    return Comparison(_outcomes(with_memory), _outcomes(others), _outcomes(same))


def growth(deltas: Sequence[Delta]) -> list[dict[str, int | str]]:
    """What each memory version of a chain changed, and how many entries it has, as rows for a table.

    `added` are those that were let in; an entry that was let in and evicted at once counts as both.
    """
    brought = dict(scan_entries(deltas).group_by("memory_version").len().collect().rows())
    gone = scan_removed(deltas).group_by("memory_version", "reason").len().collect()
    removed = {(version, reason): count for version, reason, count in gone.rows()}
    rows: list[dict[str, int | str]] = []
    size = 0
    for delta in deltas:
        merged, evicted, forgotten = (
            removed.get((delta.version, reason), 0) for reason in ("merged", "evicted", "forgotten")
        )
        added = brought.get(delta.version, 0) - merged
        size += added - evicted - forgotten
        rows.append(
            {
                "iteration": delta.iteration or 0,
                "memory_version": delta.version,
                "added": added,
                "merged": merged,
                "evicted": evicted,
                "forgotten": forgotten,
                "entries": size,
            }
        )
    return rows


def stands_for(deltas: Sequence[Delta]) -> dict[str, int]:
    """Entry -> how many it stands for, itself included; without those that stand for themselves alone."""
    merged = scan_removed(deltas).filter(pl.col("merged_into").is_not_null())
    counts = merged.group_by("merged_into").len().collect()
    return {entry_id: count + 1 for entry_id, count in counts.rows()}


def _outcomes(attempts: pl.DataFrame) -> Outcomes:
    grouped = attempts.group_by("task_id", maintain_order=True).agg("success")
    return Outcomes(dict(_pairs(grouped)))


def _pairs(grouped: pl.DataFrame) -> Iterator[tuple[str, list[bool]]]:
    for task_id, successes in grouped.sort("task_id").rows():
        yield task_id, list(successes)
