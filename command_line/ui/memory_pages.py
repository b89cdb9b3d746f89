"""The memory of a run: lists and searches after any iteration, and one entry with all that it led to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import polars as pl
from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from command_line.memory.run import RunMemory, interval, open_memory
from command_line.ui.episode import memory_files
from command_line.ui.memory import (
    COLOURS,
    DECIMALS,
    MOST_POINTS,
    Colour,
    EntryList,
    Sort,
    memory_map,
    places_within,
    read_span,
)
from command_line.ui.pages import Crumb, ThePages, TheStore, address, run_crumbs
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
_MODES = {"vector": "by meaning", "text": "by words", "hybrid": "by both"}


@dataclass(frozen=True)
class Hit:
    """An entry in the list; its score if a search found it, else None."""

    entry: dict[str, Any]
    score: float | None


@router.get("")
def memory_page(
    request: Request,
    name: str,
    stored: TheStore,
    pages: ThePages,
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
) -> HTMLResponse:
    """The entries of a memory version, those in a rectangle of its map, or those that a search finds."""
    run = stored.run(name)
    memory = _memory(run, stored, iteration)
    listed = EntryList(stored.sealed, memory)
    spans = read_span("across", across), read_span("up", up)
    brushed = any(span is not None for span in spans)
    if text:
        found = stored.searches.search(memory, text, _BEST, task_type or None, mode)
        hits = [Hit(vars(each.entry), each.score) for each in found]
        shown = RowPage(len(hits), 1, ())
    else:
        within = places_within(memory_map(stored.sealed, memory.version, listed), *spans) if brushed else None
        shown = listed.page(listed.places(task_type, within), sort, page, rising=rising)
        hits = [Hit(row, None) for row in shown.rows]
    of_version = ["--iteration", str(memory.iteration)]
    command = (
        pages.command(
            "This search in the terminal", "memory", "search", name, text, "--mode", mode, *of_version
        )
        if text
        else pages.command("The same list", "memory", "list", name, *of_version)
    )
    return pages.page(
        request,
        "memory.html.j2",
        title="Memory",
        crumbs=run_crumbs(name, Crumb("memory", address("runs", name, "memory"))),
        commands=[command, pages.command("Does memory help?", "memory", "stats", name)],
        run=run,
        memory=memory,
        span=stored.kept(name, "memory iterations", lambda: _span(run)),
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
    name: str, stored: TheStore, iteration: str = "", task_type: str = "", colour: Colour = "credit"
) -> dict[str, Any]:
    """The map of a memory version as numbers: the points of its entries, or of those of a task type, and for
    each point the number that gives its colour."""
    memory = _memory(stored.run(name), stored, iteration)
    listed = EntryList(stored.sealed, memory)
    drawn = memory_map(stored.sealed, memory.version, listed)
    shown = listed.places(task_type, None)[drawn.places]
    points, values = drawn.points[shown], listed.held.rows[drawn.places[shown]][colour]
    return {
        "across": points[:, 0].tolist(),
        "up": points[:, 1].tolist(),
        "values": values.round(DECIMALS).to_list(),
        "shares": drawn.shares,
    }


@router.get("/effect")
def effect(name: str, stored: TheStore, pages: ThePages) -> HTMLResponse:
    """The part of a page that says whether memory helps."""
    run = stored.run(name)
    found = stored.kept(
        name, "effect", lambda: memory_effect(memory_searches(rollout_files(stored.artifacts, run.run)))
    )
    return pages.part("memory_effect.html.j2", effect=found)


@router.get("/{entry}")
def entry_page(
    request: Request, name: str, entry: str, stored: TheStore, pages: ThePages, policies: bool = False
) -> HTMLResponse:
    """One entry: its credit, where it is from, which trajectories saw it; with `policies` also those that it
    reached."""
    run = stored.run(name)
    memory = _memory(run, stored, "")
    found = memory.find(entry, _near(stored, run, memory, entry))
    searches = stored.kept(
        name, "searches", lambda: memory_searches(rollout_files(stored.artifacts, run.run))
    )
    credit = stored.kept(name, "credits", lambda: entry_credits(searches)).get(found.entry_id)
    seen = searches.filter(pl.col("memory_entry_ids").list.contains(found.entry_id))
    source = _source(searches, found.source_trajectory_id)
    return pages.page(
        request,
        "entry.html.j2",
        title=f"Memory entry {found.entry_id[:14]}",
        crumbs=run_crumbs(
            name,
            Crumb("memory", address("runs", name, "memory")),
            Crumb(found.entry_id[:14], address("runs", name, "memory", found.entry_id)),
        ),
        commands=[
            pages.command("Read it in the terminal", "memory", "show", name, found.entry_id, "--policies"),
            pages.command(
                "Make the run forget it", "memory", "forget", name, found.entry_id, "--reason", "WHY"
            ),
        ],
        run=run,
        entry=found,
        credit=credit,
        interval=interval(credit),
        removal=memory.removal(found.entry_id),
        uses=retrieval_counts(seen).filter(entry_id=found.entry_id).to_dicts(),
        seen=seen.sort("iteration", descending=True).head(PAGE_ROWS).to_dicts(),
        seen_count=seen.height,
        source=source,
        reached=policies_reached(stored.artifacts, found) if policies else None,
        policies=policies,
    )


def _memory(run: RunView, stored: Stored, iteration: str) -> RunMemory:
    """The memory of a run after an iteration; its newest if `iteration` is no number of up to 9 digits."""
    number = int(iteration) if iteration.isdecimal() and len(iteration) <= 9 else None
    kept = stored.kept(
        run.name,
        f"memory after {number}",
        lambda: open_memory(stored.uri, run.name, number, stored.artifacts, run.run),
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
