"""Questions over all rows and artifacts of a store, answered with polars."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.graph import START, ArtifactGraph
from storage.lineage.rows import LineageRows, RowKind, identify
from storage.memory.entries import MemoryEntry

SAW, FOLLOWED, NAMES, DISTILLED = (
    "saw it",
    "followed a trajectory that saw it",
    "entry of a trajectory that saw it",
    "distilled from an attempt that used it",
)
DIRECTLY, DESCENDANT = "directly", "as a descendant"

_USES = {
    "kind": pl.String,
    "id": pl.String,
    "how": pl.String,
    "iteration": pl.Int32,
    "role": pl.String,
    "task_id": pl.String,
    "reward": pl.Float32,
    "artifact_id": pl.String,
}
_POLICIES = {
    "policy": pl.String,
    "how": pl.String,
    "rows": pl.Int64,
    "stage": pl.String,
    "iteration": pl.Int64,
    "run": pl.String,
}
_MADE: dict[str, pl.DataType | type[pl.DataType]] = {
    "artifact_id": pl.String,
    "stage": pl.String,
    "iteration": pl.Int64,
    "run": pl.String,
    "code_version": pl.String,
    "rows": pl.Int64,
    "bytes": pl.Int64,
    "finished_at": pl.Datetime("us", "UTC"),
}


def rows_using_memory(rows: LineageRows, identifier: str) -> pl.DataFrame:
    """Every row that used a memory entry, by iteration.

    Columns: `kind`, `id`, `how` (`SAW`: the entry was in its prompt; `FOLLOWED`: a trajectory right after one
    that saw it; `NAMES`: a memory entry that names it as parent; `DISTILLED`: a supervised row),
    `iteration`, `role`, `task_id`, `reward` (null for kinds of rows without one, and for what was not
    scored), and `artifact_id`, the artifact that holds the row.

    Raises InputError when no memory entry, or more than one, has this id or begins with it.
    """
    _, entry_id = identify(rows, identifier, ("memory_entry",))
    columns = ["trajectory_id", "iteration", "role", "task_id", "reward"]
    trajectories = rows.scan("trajectory", [*columns, "parent_trajectory_id", "memory_entry_ids"])
    saw = trajectories.filter(pl.col("memory_entry_ids").list.contains(entry_id)).collect()
    followed = trajectories.filter(
        pl.col("parent_trajectory_id").is_in(saw["trajectory_id"].implode())
    ).collect()
    # Not within the scan, which would read this column for all rows; few are left here.
    followed = followed.filter(~pl.col("memory_entry_ids").list.contains(entry_id))
    entries = (
        rows.scan("memory_entry", ["entry_id", "iteration", "parent_entry_ids"])
        .filter(pl.col("parent_entry_ids").list.contains(entry_id))
        .collect()
    )
    distilled = (
        rows.scan("sft_row", ["sft_row_id", "iteration", "task_id", "memory_entry_ids"])
        .filter(pl.col("memory_entry_ids").list.contains(entry_id))
        .collect()
    )
    found = [
        _uses(saw, "trajectory", "trajectory_id", SAW),
        _uses(followed, "trajectory", "trajectory_id", FOLLOWED),
        _uses(entries, "memory_entry", "entry_id", NAMES),
        _uses(distilled, "sft_row", "sft_row_id", DISTILLED),
    ]
    return pl.concat(found).sort("iteration", maintain_order=True)


def policies_trained_on(rows: LineageRows, graph: ArtifactGraph, task_id: str) -> pl.DataFrame:
    """Every policy whose training was reached by rows of a task, by iteration.

    Columns: `policy`, `how` (`DIRECTLY`: its own training read such rows; `DESCENDANT`: it was made from a
    policy whose training did), `rows` that its own training read, and the `stage`, `iteration` and `run` in
    which it was made.

    Raises InputError when no row belongs to this task.
    """
    read: Counter[str] = Counter()
    found = 0
    for kind in ("trajectory", "sft_row"):
        holders = _rows_of_task(rows, kind, task_id)
        found += holders.height
        for holder, count in holders.rows():
            for policy in graph.policies_trained_on(holder):
                read[policy] += count
    if not found:
        raise InputError(f"no row is of task {task_id!r}; {_some_tasks(rows)}")
    reached = graph.descendants(dict.fromkeys(read, START))
    policies = [
        {
            "policy": policy,
            "how": DIRECTLY if policy in read else DESCENDANT,
            "rows": read[policy],
            **graph.manifests[policy].model_dump(include={"stage", "iteration", "run"}),
        }
        for policy in reached
        if graph.is_checkpoint(policy)
    ]
    return pl.DataFrame(policies, schema=_POLICIES).sort("iteration", maintain_order=True)


def made_by(manifests: Iterable[Manifest], code_version: str) -> pl.DataFrame:
    """Every artifact that a version of the code made, the oldest first.

    Columns: `artifact_id`, `stage`, `iteration` (null before the first), `run` that made it, the whole
    `code_version`, `rows` of its tables, `bytes` of its files, `finished_at`.

    Args:
        code_version: a version, or its beginning; a commit also matches its `-dirty` checkouts.

    Raises InputError, which names the known versions, when nothing was made by it.
    """
    versions: Counter[str] = Counter()
    found = []
    for manifest in manifests:
        versions[manifest.code_version] += 1
        if code_version and manifest.code_version.startswith(code_version):
            found.append(
                {
                    **manifest.model_dump(include=set(_MADE)),
                    "rows": sum(entry.rows or 0 for entry in manifest.files),
                    "bytes": sum(entry.bytes for entry in manifest.files),
                }
            )
    if not found:
        known = ", ".join(f"{version} ({count})" for version, count in versions.most_common(5))
        raise InputError(f"nothing was made by code version {code_version!r}; versions: {known or 'none'}.")
    return pl.DataFrame(found, schema=_MADE).sort("finished_at")


def _uses(frame: pl.DataFrame, kind: RowKind, id_column: str, how: str) -> pl.DataFrame:
    given = frame.rename({id_column: "id"}).with_columns(kind=pl.lit(kind), how=pl.lit(how))
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in _USES.items() if name not in given.columns]
    return given.with_columns(absent).select(pl.col(name).cast(dtype) for name, dtype in _USES.items())


def _rows_of_task(rows: LineageRows, kind: RowKind, task_id: str) -> pl.DataFrame:
    """Rows of a task: (artifact that holds them, number of rows)."""
    of_task = rows.scan(kind, ["task_id"]).filter(pl.col("task_id") == task_id)
    return of_task.group_by("artifact_id", maintain_order=True).len().collect()


def _some_tasks(rows: LineageRows) -> str:
    examples = rows.scan("trajectory", ["task_id"]).head(1).collect()["task_id"]
    return f"tasks are named like {examples[0]!r}." if len(examples) else "there are no rows."


@dataclass(frozen=True)
class ReachedPolicies:
    """The policies that a memory entry has reached: `artifact_id`, `stage`, `run` and `iteration` of each, in
    the first list that it belongs to."""

    trained_with_it: Sequence[Mapping[str, Any]]
    """Trained on rollouts in which a prompt held the entry."""
    trained_on_its_source: Sequence[Mapping[str, Any]]
    """Trained on the rollouts that the entry was taken from."""
    descendants: Sequence[Mapping[str, Any]]
    """Trained from one of those policies later, or on what it generated."""
    derived_entries: Sequence[str]
    """Entries whose text was written while this entry was in the prompt."""


def policies_reached(store: ArtifactStore, entry: MemoryEntry) -> ReachedPolicies:
    """Every policy of the store that an entry reached; each file is verified before it is read."""
    graph = ArtifactGraph(store.list())
    rows = LineageRows(store, list(graph.manifests.values()))
    trajectories = rows.scan("trajectory", ["trajectory_id", "memory_entry_ids"])
    saw = pl.col("memory_entry_ids").list.contains(entry.entry_id)
    is_source = pl.col("trajectory_id") == pl.lit(entry.source_trajectory_id)
    groups: list[list[dict[str, Any]]] = []
    known: dict[str, None] = {}
    for condition in (saw, is_source, None):
        if condition is None:
            found = [
                each for each in graph.descendants(dict.fromkeys(known, START)) if graph.is_checkpoint(each)
            ]
        else:
            holders = trajectories.filter(condition).select(pl.col("artifact_id").unique()).collect()
            found = [each for holder in holders.to_series() for each in graph.policies_trained_on(holder)]
        new = [graph.manifests[each] for each in dict.fromkeys(found) if each not in known]
        known |= dict.fromkeys(found)
        new.sort(key=lambda each: (each.run, each.iteration or 0, each.stage, each.artifact_id))
        groups.append([each.model_dump(include={"artifact_id", "stage", "run", "iteration"}) for each in new])
    derived = rows.scan("memory_entry", ["entry_id", "parent_entry_ids"]).filter(
        pl.col("parent_entry_ids").list.contains(entry.entry_id)
    )
    ids = derived.select(pl.col("entry_id").unique().sort()).collect()["entry_id"].to_list()
    return ReachedPolicies(groups[0], groups[1], groups[2], ids)
