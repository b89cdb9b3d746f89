"""What an entry is worth, by a randomised experiment: in each group some trajectories get no memory.

A `guided` trajectory is compared with the trajectories of its group that got no memory (`free`): same task,
iteration, policy and role. The seed draws which ones are free, so the difference between the two is due to
memory or to chance. An observation is the reward of a guided trajectory minus the mean reward of the free
ones of its group. The credit of an entry is the mean of the n observations whose trajectories saw it, shrunk
towards 0 by n/(n + 8), as if `PRIOR` more observations of 0 had been made: luck in a few trials means little.

The reward of a reflection is that of the attempt that it led to, or 0 if it led to none. Only first rounds of
revision are compared: which trajectories reach a later round depends on what memory did before.

How entries were used is derived from the trajectories and memory versions in Parquet too; no counters are
stored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from storage.artifacts.store import ArtifactStore
from storage.memory.chain import Delta, scan_changes, scan_entries
from storage.tables.scored import was_scored
from storage.tables.sequences import attempt_files
from storage.tables.trajectories import FREE, GUIDED, scan_trajectories

if TYPE_CHECKING:
    from storage.runs.run import Run


@dataclass(frozen=True)
class Observation:
    """The reward of a guided trajectory minus the mean reward of the free ones of its group."""

    task_id: str
    iteration: int
    entry_ids: tuple[str, ...]
    """Entries in its prompt; empty if the memory had none for it."""
    difference: float


@dataclass(frozen=True)
class Evidence:
    """What trajectories show about one entry: the number of prompts that held it, and its observations."""

    entry_id: str
    retrievals: int
    credit_sum: float
    credit_count: int


def first_rounds(searches: pl.DataFrame) -> pl.DataFrame:
    """The trajectories of the first round of each role."""
    return searches.filter(pl.col("revision_index") == pl.col("revision_index").min().over("role"))


def observations(searches: pl.DataFrame) -> list[Observation]:
    """All comparisons that trajectories allow, in their order."""
    free: defaultdict[str, list[float]] = defaultdict(list)
    rows = first_rounds(searches)
    for group, reward in rows.filter(subgroup=FREE).select("group_id", "reward").iter_rows():
        free[group].append(reward)
    guided = rows.filter(pl.col("subgroup") == GUIDED, pl.col("group_id").is_in(list(free)))
    return [
        Observation(task_id, iteration, tuple(entry_ids), reward - math.fsum(free[group]) / len(free[group]))
        for task_id, iteration, entry_ids, reward, group in guided.select(
            "task_id", "iteration", "memory_entry_ids", "reward", "group_id"
        ).iter_rows()
    ]


def evidence(searches: pl.DataFrame) -> list[Evidence]:
    """What the trajectories show about each entry that they saw, in the order of entry ids."""
    retrievals: defaultdict[str, int] = defaultdict(int)
    for entry_ids in searches["memory_entry_ids"].to_list():
        for entry_id in entry_ids:
            retrievals[entry_id] += 1
    seen = of_entries(observations(searches))
    return [
        Evidence(
            entry_id,
            retrievals[entry_id],
            math.fsum(each.difference for each in seen.get(entry_id, ())),
            len(seen.get(entry_id, ())),
        )
        for entry_id in sorted(retrievals)
    ]


def of_entries(found: Sequence[Observation]) -> dict[str, list[Observation]]:
    """Entry id -> the observations of the trajectories that saw it."""
    seen: defaultdict[str, list[Observation]] = defaultdict(list)
    for observation in found:
        for entry_id in observation.entry_ids:
            seen[entry_id].append(observation)
    return dict(seen)


_SHOWN = [
    "trajectory_id",
    "episode_id",
    "role",
    "iteration",
    "task_id",
    "task_type",
    "group_id",
    "revision_index",
    "subgroup",
    "memory_version",
    "memory_entry_ids",
    "text",
    "reward",
    "success",
]


def rollout_files(store: ArtifactStore, run: Run) -> list[Path]:
    """The Parquet files of the attempts and texts of a run's rollouts; each artifact is verified."""
    return attempt_files(
        store.open(entry.artifact_id) for entry in run.stages() if entry.kind == "trajectories"
    )


def memory_searches(files: Sequence[Path]) -> pl.DataFrame:
    """One row for each trajectory in `files` whose role gets memory, in order. Those that were not scored are
    left out, and count nowhere: not as uses, and not in `base`.

    Columns: trajectory_id, episode_id, role, iteration, task_id, task_type, group_id, revision_index,
    subgroup, memory_version (empty if memory was not searched), memory_entry_ids, text, reward, success, and
    `base`. `base` is the mean reward of the other first attempts at its task in its iteration, which are of
    the same policy and saw no memory; null if there are none, or if first attempts get memory.
    """
    rows = scan_trajectories(files).filter(was_scored())
    searched = (pl.col("memory_version") != "") | pl.col("subgroup").is_not_null()
    roles = rows.filter(searched).select(pl.col("role").unique()).collect()["role"]
    shown = rows.select(_SHOWN).filter(pl.col("role").is_in(roles.implode()))
    first = rows.filter(
        pl.col("parent_trajectory_id").is_null(),
        pl.col("revision_index") == 0,
        ~pl.col("role").is_in(roles.implode()),
    )
    others = pl.len().over("group_id") - 1
    bases = first.select(
        "episode_id",
        base=pl.when(others > 0).then(
            (pl.col("reward").cast(pl.Float64).sum().over("group_id") - pl.col("reward")) / others
        ),
    )
    return shown.join(bases, on="episode_id", how="left", maintain_order="left").collect()


def retrieval_counts(seen: pl.DataFrame) -> pl.DataFrame:
    """How often each entry was in a prompt: entry_id, iteration, memory_version, retrievals; sorted."""
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


def copied(seen: pl.DataFrame, deltas: Sequence[Delta]) -> int:
    """How many trajectories say, word for word, what an entry in their own prompt says."""
    texts = scan_entries(deltas).select("entry_id", pl.col("text").alias("shown"))
    found: int = (
        seen.lazy()
        .select("trajectory_id", "text", entry_id="memory_entry_ids")
        .explode("entry_id")
        .join(texts, on="entry_id")
        .filter(pl.col("text") == pl.col("shown"))
        .select(pl.col("trajectory_id").n_unique())
        .collect()
        .item()
    )
    return found


def growth(deltas: Sequence[Delta]) -> list[dict[str, int | str]]:
    """What each memory version of a chain changed, and how many entries it has, as rows for a table.

    `added`: new entries, including those that the same version evicted. `copies`: written texts that the
    memory already had. `returned`: entries that got more support; `updated`: entries that got more evidence.
    """
    brought = dict(scan_entries(deltas).group_by("memory_version").len().collect().rows())
    grouped = scan_changes(deltas).group_by("memory_version", "operation", "reason")
    changes = {
        (version, operation, reason): (entries, support)
        for version, operation, reason, entries, support in grouped.agg(
            pl.col("entry_id").n_unique(), pl.col("support").sum()
        )
        .collect()
        .rows()
    }
    rows: list[dict[str, int | str]] = []
    size = 0
    for delta in deltas:

        def number(operation: str, reason: str = "", version: str = delta.version) -> tuple[int, int]:
            return changes.get((version, operation, reason), (0, 0))

        returned, copies = number("return")
        removed = {reason: number("remove", reason)[0] for reason in ("evicted", "forgotten", "replaced")}
        added = brought.get(delta.version, 0)
        size += added - sum(removed.values())
        rows.append(
            {
                "iteration": delta.iteration or 0,
                "memory_version": delta.version,
                "added": added,
                "copies": copies,
                "returned": returned,
                "updated": number("update")[0],
                **removed,
                "entries": size,
            }
        )
    return rows
