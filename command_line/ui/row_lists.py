"""A list of rows as an address describes it: which episodes are next to one in it, what it comes to in each
iteration, and all of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import polars as pl

from command_line.ui.filters import AddressError, read_filters, read_flag
from command_line.ui.rows import SHOWN, SORTABLE, RowList, joined_rows, known_files, require_few
from command_line.ui.stored import RunView, Stored
from erl_pipeline.views.report.episodes import ILL_FORMED
from storage.tables.trajectories import said, scan_trajectories


def read_list(query: str) -> RowList:
    """The list that the query of an address of a page of rows describes. Raises AddressError for one that
    means nothing."""
    pairs = parse_qsl(query)
    given = dict(pairs)
    sort = given.get("sort", "iteration")
    if sort not in SORTABLE:
        raise AddressError(f"Rows cannot be sorted by {sort}; they can by {', '.join(SORTABLE)}.")
    return RowList(
        read_filters(pairs),
        given.get("iteration", ""),
        sort,
        read_flag("rising", given.get("rising", "false")),
        read_flag("held_out", given.get("held_out", "false")),
    )


@dataclass(frozen=True)
class EpisodePlace:
    """Where an episode is in a run."""

    episode_id: str
    iteration: int


def neighbours(
    stored: Stored, run: RunView, listed: RowList, episode_id: str
) -> tuple[EpisodePlace | None, EpisodePlace | None]:
    """The episodes before and after one in a list; None where there is none."""
    if not listed.is_of_files:
        rows = joined_rows(stored, run, listed.span, held_out=listed.held_out)
    else:
        files = known_files(stored, run, listed.span, held_out=listed.held_out)
        met = stored.trajectories.counts(files, listed.filters)
        kept = {path: files[path] for path, count in zip(files, met, strict=True) if count}
        near = stored.trajectories.holding(kept, "episode_id", [episode_id])
        if not near:
            return None, None
        # What is next to it in the list is in its own file, or in the one before or after.
        place = list(kept).index(near[0])
        rows = scan_trajectories(list(kept)[max(0, place - 1) : place + 2])
    found = listed.ordered(listed.met(rows)).select("episode_id", "iteration")
    places = found.unique("episode_id", keep="first", maintain_order=True).collect().rows()
    here = next((number for number, (each, _) in enumerate(places) if each == episode_id), None)
    if here is None:
        return None, None
    before = EpisodePlace(*places[here - 1]) if here else None
    after = EpisodePlace(*places[here + 1]) if here + 1 < len(places) else None
    return before, after


def rewards_by_iteration(
    stored: Stored, run: RunView, listed: RowList
) -> dict[int, dict[str, Mapping[str, Any]]]:
    """Iteration -> role -> number of `rows`, of `successes` among them, and `mean` reward, of the attempts of
    a list that were scored. The newest iteration comes first."""
    rows = listed.met(joined_rows(stored, run, listed.span, held_out=listed.held_out))
    found: dict[int, dict[str, Mapping[str, Any]]] = {}
    attempts = rows.filter(
        pl.col("text").is_null(),
        pl.col("finish_reason").ne_missing(ILL_FORMED),
        pl.col("success").is_not_null(),
    )
    groups = attempts.group_by("iteration", "role", maintain_order=True)
    numbers = groups.agg(rows=pl.len(), mean=pl.col("reward").mean(), successes=pl.col("success").sum()).sort(
        "iteration", descending=True, maintain_order=True
    )
    for row in numbers.collect().to_dicts():
        found.setdefault(row["iteration"], {})[row["role"]] = row
    return found


def all_rows(stored: Stored, run: RunView, listed: RowList) -> pl.DataFrame:
    """The rows of a list with what the policy said. Raises InputError for more than `MOST_ROWS`."""
    rows = listed.ordered(listed.met(joined_rows(stored, run, listed.span, held_out=listed.held_out)))
    require_few(rows.select(pl.len()).collect().item())
    return rows.select(*SHOWN, said=said()).collect()
