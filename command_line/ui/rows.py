"""The rows of a run's trajectories, with what training did with each; only what is needed is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from command_line.episodes.rows import EPISODES, run_episodes, trajectory_paths
from command_line.options import iteration_span
from command_line.ui.filters import AddressError, Filter
from command_line.ui.stored import RunView, Stored
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.evaluation.samples import NO_RECORD, NOT_GIVEN, TRAINED
from storage.artifacts.artifact import Artifact
from storage.artifacts.manifest import Manifest
from storage.errors import InputError
from storage.lineage.trained_on import record_file
from storage.tables.sequences import attempt_files
from storage.tables.training import scan_training_records
from storage.tables.trajectories import TRAJECTORIES, said, scan_trajectories

PAGE_ROWS = 50
_SAID = 160
"""Most characters of a text that a table shows."""
_OF_RECORD = (
    "advantage", "weight", "trained_tokens", "mean_ratio", "clipped_share", "mismatch", "entropy", "loss",
)  # fmt: skip
JOINED = {*_OF_RECORD, "outcome", "tokens"}
"""Columns that rows have only after `joined_rows`."""
SORTABLE = ("iteration", "reward", *_OF_RECORD, "tokens")
SHOWN = (
    "trajectory_id",
    "episode_id",
    "iteration",
    "role",
    "task_id",
    "task_type",
    "sample_index",
    "subgroup",
    "reward",
    "success",
    "finish_reason",
    "outcome",
    "tokens",
    *_OF_RECORD,
)
"""Columns of a table of rows."""


@dataclass(frozen=True)
class RowPage:
    """One page of the rows that are wanted, and the number of all that are."""

    count: int
    page: int
    rows: Sequence[dict[str, Any]]

    @property
    def pages(self) -> int:
        return page_count(self.count)


def page_count(rows: int) -> int:
    """How many pages rows take; one page if there are none."""
    return max(1, -(-rows // PAGE_ROWS))


MOST_ROWS = 100_000
"""Most rows of a table that are given at once."""


def require_few(rows: int) -> None:
    """Raise InputError for a table that is too long to be given at once."""
    if rows > MOST_ROWS:
        raise InputError(
            f"This table has {rows:,} rows, and at most {MOST_ROWS:,} are given at once. Filter it, for "
            "instance by iteration, or read the Parquet files."
        )


def row_files(
    stored: Stored, run: RunView, span: tuple[int, int] | None, *, held_out: bool = False
) -> dict[Path, Manifest]:
    """The files of trajectories of some iterations, the newest first, each verified."""
    return trajectory_paths(stored.artifacts, reversed(_holders(stored, run, span, held_out=held_out)))


def sequence_files(
    stored: Stored, run: RunView, span: tuple[int, int], *, held_out: bool = False
) -> list[Path]:
    """Like `row_files`, with the files of further sequences of agents' attempts."""
    holders = _holders(stored, run, span, held_out=held_out)
    return stored.artifacts.rows_paths(holders, TRAJECTORIES.name)


def _holders(
    stored: Stored, run: RunView, span: tuple[int, int] | None, *, held_out: bool
) -> Sequence[Manifest]:
    kind = "evaluation" if held_out else "trajectories"
    own = [record.manifest for record in run.of_iterations(span) if record.kind == kind]
    # A run without its own rollouts shows those that it trained on.
    return own or run_episodes(stored.artifacts, run.run, span, held_out=held_out)


def training_records(stored: Stored, run: RunView, span: tuple[int, int] | None) -> pl.LazyFrame:
    """The training records of some iterations, only of reinforcement: one row for each trajectory."""
    return _first_of_each(list(record_files(stored, run, span)))


def record_files(
    stored: Stored, run: RunView, span: tuple[int, int] | None = None
) -> dict[Path, StageRecord]:
    """The files of the training records of some iterations, and the update of each."""
    return {
        stored.artifacts.open_file(record.manifest, name): record
        for record in run.of_iterations(span)
        if (name := record_file(record.manifest)) is not None
    }


def _first_of_each(files: Sequence[Path]) -> pl.LazyFrame:
    records = scan_training_records(files).filter(pl.col("sft_row_id").is_null())
    return records.unique("trajectory_id", keep="first", maintain_order=True)


def joined_rows(
    stored: Stored, run: RunView, span: tuple[int, int] | None, *, held_out: bool = False
) -> pl.LazyFrame:
    """Trajectories with columns of their training record, `tokens`, and `outcome`: trained, or why not."""
    rows = scan_trajectories(list(row_files(stored, run, span, held_out=held_out)))
    records = training_records(stored, run, None if held_out else span)
    return _joined(stored, run, span, rows, records, held_out=held_out)


@dataclass(frozen=True)
class RowList:
    """The rows of a run that meet some filters, in an order."""

    filters: Sequence[Filter] = ()
    iteration: str = ""
    sort: str = "iteration"
    rising: bool = False
    held_out: bool = False

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last iteration; None for all. Raises AddressError for what is no iteration."""
        try:
            return iteration_span(self.iteration or None)
        except InputError as error:
            # It begins with the option of the commands.
            raise AddressError(f"iteration={str(error).partition(' ')[2]}") from error

    @property
    def in_order_of_files(self) -> bool:
        """Whether the rows have the order in which they are stored, the newest iteration first."""
        return self.sort == "iteration" and not self.rising

    @property
    def is_of_files(self) -> bool:
        """Whether the files of trajectories alone say which rows are in the list, and in which order."""
        return self.in_order_of_files and not any(each.column in JOINED for each in self.filters)

    def met(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Those of the rows that are in the list."""
        for each in self.filters:
            rows = rows.filter(each.condition())
        return rows

    def ordered(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Rows of the list in its order; rows without a value come last."""
        if self.in_order_of_files:
            return rows
        return rows.sort(self.sort, "trajectory_id", descending=[not self.rising, False], nulls_last=True)


def find_rows(stored: Stored, run: RunView, listed: RowList, page: int) -> RowPage:
    """A page of a list of rows.

    Where the files of trajectories say which rows are in it, only those that hold the page are read; the
    number of matching rows in each file is kept between requests.
    """
    span, held_out = listed.span, listed.held_out
    if not listed.is_of_files:
        return read_page(joined_rows(stored, run, span, held_out=held_out), listed, page)
    files = known_files(stored, run, span, held_out=held_out)
    ends = np.cumsum([0, *stored.trajectories.counts(files, listed.filters)])
    count = int(ends[-1])
    number = min(max(1, page), page_count(count))
    start = (number - 1) * PAGE_ROWS
    first = int(np.searchsorted(ends, start, side="right")) - 1
    last = int(np.searchsorted(ends, start + PAGE_ROWS))
    rows = listed.met(scan_trajectories(list(files)[first:last])).slice(start - int(ends[first]), PAGE_ROWS)
    ids = rows.select("trajectory_id").collect()["trajectory_id"].to_list()
    records = record_files(stored, run, None if held_out else span)
    near = stored.records.holding({path: path for path in records}, "trajectory_id", ids)
    joined = _joined(stored, run, span, rows, _first_of_each(near), held_out=held_out)
    return RowPage(count, number, _shown(joined))


def known_files(
    stored: Stored, run: RunView, span: tuple[int, int] | None, *, held_out: bool
) -> dict[Path, Artifact]:
    """Like `row_files`, each with the artifact that holds it."""
    artifacts = [
        stored.artifacts.open_found(manifest)
        for manifest in reversed(_holders(stored, run, span, held_out=held_out))
        if manifest.kind in EPISODES
    ]
    return {path: each for each in artifacts for path in attempt_files([each])}


def _joined(
    stored: Stored,
    run: RunView,
    span: tuple[int, int] | None,
    rows: pl.LazyFrame,
    records: pl.LazyFrame,
    *,
    held_out: bool,
) -> pl.LazyFrame:
    within = None if held_out else span
    outcome = pl.coalesce(pl.col("not_trained"), pl.lit(TRAINED))
    records = records.select("trajectory_id", *_OF_RECORD, outcome.alias("outcome"))
    recorded = stored.kept(
        run.name, f"recorded {span}, {held_out}", lambda: _any(training_records(stored, run, within))
    )
    missing = "evaluation" if held_out else NOT_GIVEN if recorded else NO_RECORD
    joined = rows.join(records, on="trajectory_id", how="left", maintain_order="left")
    return joined.with_columns(
        pl.col("outcome").fill_null(missing), tokens=pl.col("response_mask").list.sum().cast(pl.Int64)
    )


def read_page(rows: pl.LazyFrame, listed: RowList, page: int) -> RowPage:
    """A page of those of the rows that are in a list; in the order of files, they have the order given."""
    rows = listed.met(rows)
    count = rows.select(pl.len()).collect().item()
    number = min(max(1, page), page_count(count))
    start = (number - 1) * PAGE_ROWS
    if not listed.in_order_of_files:
        # Only what the order needs is read of all rows.
        keys = listed.ordered(rows.select("trajectory_id", listed.sort)).slice(start, PAGE_ROWS)
        wanted = keys.collect()["trajectory_id"]
        rows = listed.ordered(rows.filter(pl.col("trajectory_id").is_in(wanted.implode())))
        start = 0
    return RowPage(count, number, _shown(rows.slice(start, PAGE_ROWS)))


def _shown(rows: pl.LazyFrame) -> list[dict[str, Any]]:
    shown = rows.select(*SHOWN, said=said().str.slice(0, _SAID), pruned=pl.col("messages").is_null())
    return shown.collect().to_dicts()


def groups_of(rows: pl.LazyFrame) -> list[dict[str, Any]]:
    """The groups of an iteration, with the rewards and advantages of their rows."""
    groups = rows.group_by("group_id", maintain_order=True).agg(
        pl.col("role", "task_id", "task_type").first(),
        rows=pl.len(),
        mean=pl.col("reward").mean(),
        spread=pl.col("reward").max() - pl.col("reward").min(),
        successes=pl.col("success").sum(),
        trained=(pl.col("outcome") == TRAINED).sum(),
        outcomes=pl.col("outcome"),
        rewards=pl.col("reward"),
        advantages=pl.col("advantage"),
        episodes=pl.col("episode_id"),
        mismatch=pl.col("mismatch").max(),
    )
    return groups.collect().to_dicts()


def ordered_groups(groups: Sequence[dict[str, Any]], by: str, *, rising: bool) -> list[dict[str, Any]]:
    """Groups in the order of one of their values; those without it, such as the mean of rewards that are not
    known, come last."""
    known = [group for group in groups if group[by] is not None]
    unknown = [group for group in groups if group[by] is None]
    return sorted(known, key=itemgetter(by), reverse=not rising) + unknown


def _any(records: pl.LazyFrame) -> bool:
    return bool(records.select(pl.len()).head(1).collect().item() > 0)
