"""The memory of a run: lists and searches after any iteration, and one entry with all that it led to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import polars as pl
from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from command_line.memory.run import RunMemory, open_memory
from command_line.ui.episode import memory_files
from command_line.ui.memory import (
    COLOURS,
    DECIMALS,
    MOST_POINTS,
    Colour,
    EntryList,
    Sort,
    places_within,
    read_span,
)
from command_line.ui.pages import ARunVisit
from command_line.ui.rows import PAGE_ROWS, RowPage
from command_line.ui.stored import RunView, Stored
from erl_pipeline.evaluation.memory_effect import entry_credits, memory_effect
from storage.lineage.questions import policies_reached
from storage.memory.chain import Delta
from storage.memory.credit import memory_searches, retrieval_counts, rollout_files
from storage.memory.search import SearchMode
from storage.memory.versions import memory_versions

router = APIRouter(prefix="/runs/{name}/memory")

_BEST = 20
_CSV = (
    "entry_id", "kind", "task_type", "text", "task_text", "feedback", "credit", "credit_count", "support",
    "retrievals", "iteration", "last_iteration",
)  # fmt: skip
_MODES = {"vector": "by meaning", "text": "by words", "hybrid": "by both"}


@dataclass(frozen=True)
class Hit:
    """An entry in the list; its score if a search found it, else None."""

    entry: dict[str, Any]
    score: float | None


@router.get("")
def memory_page(
    here: ARunVisit,
    text: str = "",
    mode: SearchMode = "text",
    iteration: str = "",
    task_type: str = "",
    sort: Sort = "credit",
    rising: bool = False,
    page: Annotated[int, Query(ge=1)] = 1,
    across: str = "",
    up: str = "",
    colour: Colour = "credit",
) -> Response:
    """The entries of a memory version, those in a rectangle of its map, or those that a search finds."""
    run, name, stored = here.run, here.name, here.stored
    memory = _memory(here, iteration)
    listed = EntryList(stored.sealed, memory)
    spans = read_span("across", across), read_span("up", up)
    brushed = any(span is not None for span in spans)
    if text:
        found = stored.searches.search(memory, text, _BEST, task_type or None, mode)
        hits = [Hit(vars(each.entry), each.score) for each in found]
        if here.wants_csv:
            return here.csv(
                f"{name}-memory", ("score", *_CSV), [{"score": hit.score, **hit.entry} for hit in hits]
            )
        shown = RowPage(len(hits), 1, ())
    else:
        within = places_within(listed.map(), *spans) if brushed else None
        chosen = listed.places(task_type, within)
        if here.wants_csv:
            return here.csv(f"{name}-memory", _CSV, listed.whole(chosen, sort, rising=rising))
        shown = listed.page(chosen, sort, page, rising=rising)
        hits = [Hit(row, None) for row in shown.rows]
    of_version = ["--iteration", str(memory.iteration)]
    command = (
        here.command(
            "This search in the terminal", "memory", "search", name, text, "--mode", mode, *of_version
        )
        if text
        else here.command("The same list", "memory", "list", name, *of_version)
    )
    return here.page(
        "memory.html.j2",
        "Memory",
        [here.crumb("memory", "memory")],
        commands=[command, here.command("Does memory help?", "memory", "stats", name)],
        memory=memory,
        span=here.kept("memory iterations", lambda: _span(run)),
        hits=hits,
        count=shown.count,
        page_number=shown.page,
        page_count=shown.pages,
        held=listed.held.rows.height,
        kinds=listed.held.task_types,
        text=text,
        mode=mode,
        modes=_MODES,
        iteration=iteration,
        task_type=task_type,
        sort=sort,
        rising=rising,
        across=across,
        up=up,
        brushed=brushed,
        colour=colour,
        colours=COLOURS,
        most_points=MOST_POINTS,
    )


def _span(run: RunView) -> tuple[int, int]:
    """The first and the last iteration that has a memory version; zeros if none has."""
    iterations = [each.iteration for each in memory_versions(run.run)]
    return min(iterations, default=0), max(iterations, default=0)


@router.get("/map")
def map_points(
    here: ARunVisit, iteration: str = "", task_type: str = "", colour: Colour = "credit"
) -> dict[str, Any]:
    """The map of a memory version as numbers: the points of its entries, or of those of a task type, and for
    each point the number that gives its colour."""
    memory = _memory(here, iteration)
    listed = EntryList(here.stored.sealed, memory)
    drawn = listed.map()
    shown = listed.places(task_type, None)[drawn.places]
    points, values = drawn.points[shown], listed.held.rows[drawn.places[shown]][colour]
    return {
        "across": points[:, 0].tolist(),
        "up": points[:, 1].tolist(),
        "values": values.round(DECIMALS).to_list(),
        "shares": drawn.shares,
    }


@router.get("/effect")
def effect(here: ARunVisit) -> HTMLResponse:
    """The part of a page that says whether memory helps."""
    found = here.kept("effect", lambda: memory_effect(_searches(here)))
    return here.pages.part("memory_effect.html.j2", effect=found)


def _searches(here: ARunVisit) -> pl.DataFrame:
    """The rows of `memory_searches` of a run."""
    run = here.run.run
    return here.kept("searches", lambda: memory_searches(rollout_files(here.stored.artifacts, run)))


@router.get("/{entry}")
def entry_page(entry: str, here: ARunVisit, policies: bool = False) -> HTMLResponse:
    """One entry: its credit, where it is from, which trajectories saw it; with `policies` also those that it
    reached."""
    name, stored = here.name, here.stored
    memory = _memory(here, "")
    found = memory.find(entry, _near(stored, here.run, memory, entry))
    searches = _searches(here)
    credit = here.kept("credits", lambda: entry_credits(searches)).get(found.entry_id)
    seen = searches.filter(pl.col("memory_entry_ids").list.contains(found.entry_id))
    source = _source(searches, found.source_trajectory_id)
    return here.page(
        "entry.html.j2",
        f"Memory entry {found.entry_id[:14]}",
        [here.crumb("memory", "memory"), here.crumb(found.entry_id[:14], "memory", found.entry_id)],
        commands=[
            here.command("Read it in the terminal", "memory", "show", name, found.entry_id, "--policies"),
            here.command(
                "Make the run forget it", "memory", "forget", name, found.entry_id, "--reason", "WHY"
            ),
        ],
        entry=found,
        credit=credit,
        removal=memory.removal(found.entry_id),
        uses=retrieval_counts(seen).filter(entry_id=found.entry_id).to_dicts(),
        seen=seen.sort("iteration", descending=True).head(PAGE_ROWS).to_dicts(),
        seen_count=seen.height,
        source=source,
        reached=policies_reached(stored.artifacts, found) if policies else None,
        policies=policies,
    )


def _memory(here: ARunVisit, iteration: str) -> RunMemory:
    """The memory of a run after an iteration; its newest if `iteration` is no number of up to 9 digits."""
    number = int(iteration) if iteration.isdecimal() and len(iteration) <= 9 else None
    stored, run = here.stored, here.run.run
    kept = here.kept(
        f"memory after {number}", lambda: open_memory(stored.uri, run.name, number, stored.artifacts, run)
    )
    # A new object, which verifies its files again.
    return replace(kept)


def _near(stored: Stored, run: RunView, memory: RunMemory, entry: str) -> Sequence[Delta] | None:
    """The deltas that added the entry of this id, or that changed any entry; None if none added it."""
    files = stored.kept(run.name, "memory files", lambda: memory_files(stored, run))
    near = set(stored.entries.holding(files, "entry_id", [entry]))
    if not near:
        return None
    return [each for each in memory.deltas if each.operation_files or near.intersection(each.entry_files)]


def _source(searches: pl.DataFrame, trajectory_id: str | None) -> dict[str, Any] | None:
    """The row of the trajectory that an entry was taken from, if it is one of this run's."""
    if trajectory_id is None:
        return None
    rows = searches.filter(pl.col("trajectory_id") == trajectory_id).to_dicts()
    return rows[0] if rows else None
