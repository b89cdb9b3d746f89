"""One run: its results, and what it is doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, StreamingResponse

from command_line.ui.live import live_state
from command_line.ui.routes.common import ThePages, TheStore, run_crumbs
from command_line.ui.stored import Stored
from erl_pipeline.views.report.curves import AXES, Axis
from storage.runs.origin import read_origin

router = APIRouter(prefix="/runs/{name}")

_LOOK_SECONDS = 0.5
"""Seconds between two checks of a run's ledger."""
_REST_SECONDS = 1.2
"""Seconds without a check after a commit was reported. A page fetches its numbers after each report, and that
takes time from a training beside it; so a commit shows within two seconds, but not at once."""
_SIGN_OF_LIFE_SECONDS = 15.0


@router.get("")
def overview(
    request: Request,
    name: str,
    stored: TheStore,
    pages: ThePages,
    x: Axis = "iteration",
    smooth: Annotated[float, Query(ge=0, lt=1)] = 0.0,
) -> HTMLResponse:
    """The overview of a run: curves, figures and its state."""
    run = stored.run(name)
    config = stored.config(run)
    origin = read_origin(stored.uri, name)
    state = live_state(stored, run)
    commands = [pages.command("The same numbers", "status", name)]
    if state.status == "stopped":
        commands.insert(0, pages.command("What going on would compute", "plan", name))
    if state.status == "finished":
        commands.insert(
            0, pages.command("Try it on its held-out tasks", "evaluate", name, "--tasks", "generated")
        )
    return pages.page(
        request,
        "run.html.j2",
        title=name,
        crumbs=run_crumbs(run),
        commands=commands,
        run=run,
        config=config,
        origin=None if origin is None else origin.describe(),
        state=state,
        tiles=run.tiles,
        table=run.table,
        x=x,
        axes=AXES,
        smooth=smooth,
    )


@router.get("/live")
def live(name: str, stored: TheStore, pages: ThePages) -> HTMLResponse:
    """The parts of a page that show what the run does now, and its results so far."""
    run = stored.run(name)
    return pages.part(
        "progress.html.j2",
        run=run,
        state=live_state(stored, run),
        tiles=run.tiles,
        table=run.table,
    )


@router.get("/events")
async def events(name: str, stored: TheStore) -> StreamingResponse:
    """Server-sent events: `state` after each commit of the run, `ended` when no process works on it."""
    await run_in_threadpool(stored.run, name)
    return StreamingResponse(_events(stored, name), media_type="text/event-stream")


async def _events(stored: Stored, name: str) -> AsyncIterator[str]:
    before, quiet = None, 0.0
    while True:
        mark = await run_in_threadpool(_state_mark, stored, name)
        rest = _LOOK_SECONDS
        if mark != before:
            yield f"event: state\ndata: {mark}\n\n"
            before, quiet, rest = mark, 0.0, _REST_SECONDS
        elif quiet >= _SIGN_OF_LIFE_SECONDS:
            yield ": still here\n\n"
            quiet = 0.0
        if stored.holder(name) is None:
            yield f"event: ended\ndata: {mark}\n\n"
            return
        await asyncio.sleep(rest)
        quiet += rest


def _state_mark(stored: Stored, name: str) -> str:
    """A text that changes whenever the ledger changes."""
    mark = stored.mark(name)
    return str(len(stored.run(name).recorded)) if mark is None else "-".join(map(str, mark))
