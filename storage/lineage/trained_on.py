"""What a policy learned from: the training records of its line of checkpoints, and the rows behind them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import polars as pl

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.graph import START, Link, walk
from storage.tables.parquet import TableFormat, scan_files
from storage.tables.training import REINFORCEMENT, SFT, TRAINING_RECORD, scan_training_records
from storage.tables.trajectories import TRAJECTORIES, answered, said, says, scan_trajectories

FindManifest = Callable[[str], Manifest | None]
"""Gives the manifest of an artifact; None where there is none."""

DIRECTLY, INHERITED = "directly", "by inheritance"

_NOT_DATA: tuple[ArtifactKind, ...] = (
    "checkpoint",
    "memory",
    "experience",
    "selection",
    "tasks",
    "evaluation",
)
"""Kinds of artifacts that are not training data, though training or the making of its data may read them."""


@dataclass(frozen=True)
class LinePolicy:
    """A checkpoint in the line of a policy, `depth` updates before it."""

    manifest: Manifest
    depth: int

    @property
    def record_file(self) -> str | None:
        """Name of its training record; None where it has none."""
        return record_file(self.manifest)


@dataclass(frozen=True)
class RowFilter:
    """Which of the trained rows to give; None for all. `text` is searched for in the policy's messages."""

    role: str | None = None
    task_type: str | None = None
    success: bool | None = None
    min_reward: float | None = None
    iterations: tuple[int, int] | None = None
    """First and last iteration (both included) that sampled the row."""
    text: str | None = None

    @property
    def wants_outcomes(self) -> bool:
        """Whether the filter needs rewards or successes, which supervised rows do not have themselves."""
        return self.success is not None or self.min_reward is not None


def record_file(manifest: Manifest) -> str | None:
    """Name of a checkpoint's training record; None if it was not trained, or was made before there were
    records."""
    return next((entry.path for entry in manifest.tables(TRAINING_RECORD.name)), None)


def training_data(find: FindManifest, checkpoints: Iterable[str]) -> list[str]:
    """Artifacts that the training of checkpoints read, and those that they list or were made from, back to
    the trajectories; the nearest first."""

    def links(artifact_id: str) -> list[Link]:
        manifest = find(artifact_id)
        if manifest is None or manifest.tables(TRAJECTORIES.name):
            return []
        return [link for link in manifest.inputs.items() if _kind(find, link[1]) not in _NOT_DATA]

    begun = dict.fromkeys(checkpoints, START)
    return [each for each in walk(begun, links) if each not in begun]


def trajectory_files(store: ArtifactStore, find: FindManifest, artifact_ids: Iterable[str]) -> list[Path]:
    """The Parquet files of trajectories in artifacts; artifacts that have some are verified."""
    return store.rows_paths(filter(None, map(find, artifact_ids)), TRAJECTORIES.name)


def _kind(find: FindManifest, artifact_id: str) -> ArtifactKind | None:
    manifest = find(artifact_id)
    return None if manifest is None else manifest.kind


class TrainedOn:
    """What a policy learned from, whichever runs made its checkpoints and rows.

    Records are read lazily; trajectories are opened only if a filter or `texts` needs them.

    Raises InputError if there is no such artifact, or if it is not a checkpoint.
    """

    def __init__(self, store: ArtifactStore, checkpoint_id: str) -> None:
        self._store = store
        self._find = cache(store.find)
        manifest = self._find(checkpoint_id)
        if manifest is None:
            raise InputError(f"no artifact {checkpoint_id} in store {store.uri}.")
        if manifest.kind != "checkpoint":
            raise InputError(
                f"artifact {checkpoint_id} ({manifest.stage}) is of kind {manifest.kind}; give a checkpoint."
            )
        visits = walk({checkpoint_id: START}, self._parents)
        found = [(self._find(each), visit.depth) for each, visit in visits.items()]
        self.line = [LinePolicy(each, depth) for each, depth in found if each is not None]
        """The policy and those that it was trained from, the newest first."""

    @property
    def without_record(self) -> list[LinePolicy]:
        """Policies of the line that were trained but whose training left no record."""
        return [
            policy
            for policy in self.line
            if policy.record_file is None and self._data_of([policy.manifest.artifact_id])
        ]

    def rows(self, wanted: RowFilter) -> pl.LazyFrame:
        """The rows that were trained on, by policy, the newest policy first.

        Columns: those of the training record, `policy` (the checkpoint that training on them gave), `depth`
        and `how` (`DIRECTLY` or `INHERITED`). If a filter needs them, rewards of supervised rows are those of
        their attempts; else they are null.
        """
        rows = self._records.filter(pl.col("not_trained").is_null())
        for name in ("role", "task_type"):
            value = getattr(wanted, name)
            if value is not None:
                rows = rows.filter(pl.col(name) == value)
        if wanted.iterations is not None:
            rows = rows.filter(pl.col("iteration").is_between(*wanted.iterations))
        if wanted.wants_outcomes:
            rows = self._with_outcomes(rows)
        if wanted.success is not None:
            rows = rows.filter(pl.col("success") == wanted.success)
        if wanted.min_reward is not None:
            rows = rows.filter(pl.col("reward") >= pl.lit(wanted.min_reward, pl.Float32))
        if wanted.text is not None:
            speaking = self._trajectories(self._recorded).filter(says(wanted.text)).select("trajectory_id")
            rows = rows.join(speaking, on="trajectory_id", how="semi", maintain_order="left")
        return rows

    def texts(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with rewards and with the `text` that was trained: the policy's messages, or in a
        supervised row the completion, such as a corrected answer; null if it was pruned.

        Only what these rows' policies were trained on is opened.
        """
        policies = rows["policy"].unique().to_list()
        ids = pl.col("trajectory_id").is_in(rows["trajectory_id"].unique().implode())
        texts = _with_attempts(rows.lazy(), self._trajectories(policies).filter(ids), text=said())
        taught = pl.col("sft_row_id").is_in(rows["sft_row_id"].drop_nulls().unique().implode())
        completions = scan_files(self._tables(policies, SFT), SFT).filter(taught)
        completions = completions.select("sft_row_id", taught=answered(pl.col("completion")))
        joined = texts.join(
            completions.unique("sft_row_id"), on="sft_row_id", how="left", maintain_order="left"
        )
        return joined.with_columns(text=pl.coalesce("taught", "text")).drop("taught").collect()

    def beside(self, rows: pl.DataFrame, table: TableFormat) -> dict[str, dict[str, Any]]:
        """What a table that lies beside trajectories, such as that of served traffic, says of these rows:
        trajectory -> its row, for those that it has."""
        files = self._tables(rows["policy"].unique().to_list(), table)
        ids = pl.col("trajectory_id").is_in(rows["trajectory_id"].unique().implode())
        those = scan_files(files, table).filter(ids).collect()
        return {row["trajectory_id"]: row for row in those.to_dicts()}

    def memory_entries(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """Memory entries that stood in the prompts of rows: `entry_id` and `rows`, those of most rows first.

        Supervised rows are left out: their prompts are the original ones, without memory.
        """
        trained = rows.filter(pl.col("kind") == REINFORCEMENT).select("policy", "trajectory_id").collect()
        prompts = self._trajectories(trained["policy"].unique().to_list())
        shown = prompts.select("trajectory_id", entry_id="memory_entry_ids").unique("trajectory_id")
        return (
            trained.lazy()
            .select("trajectory_id")
            .join(shown, on="trajectory_id")
            .explode("entry_id")
            .drop_nulls("entry_id")
            .group_by("entry_id")
            .agg(rows=pl.len())
            .sort("rows", "entry_id", descending=[True, False])
            .collect()
        )

    @cached_property
    def _recorded(self) -> list[str]:
        return [policy.manifest.artifact_id for policy in self.line if policy.record_file is not None]

    @cached_property
    def _records(self) -> pl.LazyFrame:
        paths = {
            self._store.open_file(policy.manifest, name): policy
            for policy in self.line
            if (name := policy.record_file) is not None
        }
        policies = {str(path): policy.manifest.artifact_id for path, policy in paths.items()}
        depths = {policy.manifest.artifact_id: policy.depth for policy in paths.values()}
        rows = scan_training_records(list(paths), path_column="policy")
        rows = rows.with_columns(pl.col("policy").replace(policies))
        depth = pl.col("policy").replace_strict(depths, return_dtype=pl.Int32)
        how = pl.when(depth == 0).then(pl.lit(DIRECTLY)).otherwise(pl.lit(INHERITED))
        return rows.with_columns(depth=depth, how=how)

    def _with_outcomes(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Fill in missing rewards and successes from the attempts that the rows were made from."""
        lacking = rows.filter(pl.col("reward").is_null()).select("policy").unique().collect()["policy"]
        if lacking.is_empty():
            return rows
        return _with_attempts(rows, self._trajectories(lacking))

    def _trajectories(self, policies: Iterable[str]) -> pl.LazyFrame:
        """All trajectories that the training of these policies read, directly or through a dataset."""
        return scan_trajectories(trajectory_files(self._store, self._find, self._data_of(policies)))

    def _tables(self, policies: Iterable[str], table: TableFormat) -> list[Path]:
        """The files of a table in what the training of these policies read."""
        found = filter(None, map(self._find, self._data_of(policies)))
        return self._store.rows_paths(found, table.name)

    def _parents(self, artifact_id: str) -> list[Link]:
        manifest = self._find(artifact_id)
        inputs = {} if manifest is None else manifest.inputs
        return [link for link in inputs.items() if _kind(self._find, link[1]) == "checkpoint"]

    def _data_of(self, policies: Iterable[str]) -> list[str]:
        return training_data(self._find, policies)


def _with_attempts(rows: pl.LazyFrame, attempts: pl.LazyFrame, **columns: pl.Expr) -> pl.LazyFrame:
    """Rows with columns of the attempts that they were made from, and with their rewards and successes where
    they have none."""
    then = {name: f"{name}_then" for name in ("reward", "success")}
    of_attempts = attempts.select("trajectory_id", pl.col(*then).name.suffix("_then"), **columns)
    joined = rows.join(
        of_attempts.unique("trajectory_id"), on="trajectory_id", how="left", maintain_order="left"
    )
    filled = [pl.coalesce(name, of_attempt).alias(name) for name, of_attempt in then.items()]
    return joined.with_columns(filled).drop(*then.values())
