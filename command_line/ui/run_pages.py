"""The pages of one run: its results, what it is doing, its plan, its settings."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import yaml
from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from command_line.ui.pages import ARunVisit, address
from command_line.ui.stored import RunStatus, RunView, Stored
from erl_pipeline.config.base import NotInstalledSettings
from erl_pipeline.evaluation.history import StageRecord
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.planning import plan_for
from erl_pipeline.runs.state import begun_iterations
from erl_pipeline.views.report.curves import AXES, Axis
from erl_pipeline.views.report.tables import version_rows
from storage.runs.documents import read_origin
from storage.runs.notes import read_notes

_NEWEST = 6


@dataclass(frozen=True)
class LiveState:
    """The state of a run at one moment.

    `next_stage` is the first planned stage that has no artifact: the stage at work, if a process works on the
    run. `between`: every iteration that it began is complete, so that it may have ended where it was asked to
    end. `rate` is that of the newest shard, in generated tokens per second.
    """

    status: RunStatus
    holder: str
    next_stage: PlannedStage | None
    between: bool
    rate: float | None
    newest: Sequence[StageRecord]


def live_state(stored: Stored, run: RunView) -> LiveState:
    """What a run does now."""
    holder = stored.holder(run.name)
    shards = [record for record in reversed(run.history) if record.kind == "trajectories"]
    rate = None
    if shards and shards[0].seconds:
        rate = (shards[0].number("generated_tokens") or 0.0) / shards[0].seconds
    newest = sorted(run.history, key=lambda record: record.manifest.finished_at, reverse=True)[:_NEWEST]
    next_stage = stored.kept(run.name, "next stage", lambda: _next_stage(stored, run))
    lacks_stages = next_stage is not None and next_stage.place.iteration <= run.done
    return LiveState(
        stored.status(run),
        "" if holder is None else f"process {holder.pid} on {holder.host}",
        next_stage,
        0 < run.done == begun_iterations(run.entries) and not lacks_stages,
        rate,
        newest,
    )


def _next_stage(stored: Stored, run: RunView) -> PlannedStage | None:
    return next((node for node in planned_stages(stored, run) if node.place not in run.places), None)


def planned_stages(stored: Stored, run: RunView) -> Sequence[PlannedStage]:
    """The stages of a run's plan, in order; empty where its environment, which a plan needs, cannot be used.
    Their ids have no meaning, since no code was fingerprinted."""
    if run.config is None or isinstance(run.config.environment, NotInstalledSettings):
        return ()
    config = run.config
    # The plan depends only on the settings and on the requests in the ledger.
    return stored.kept(
        run.name,
        "plan",
        lambda: (
            plan_for(
                stored.uri, run.run, config, run.total, sources=unread_sources(config), entries=run.recorded
            ).nodes
        ),
    )


router = APIRouter(prefix="/runs/{name}")

_LOOK_SECONDS = 0.5
"""Seconds between two checks of a run's ledger."""
_REST_SECONDS = 1.2
"""Seconds without a check after a commit was reported. A page fetches its numbers after each report, and that
takes time from a training beside it; so a commit shows within two seconds, but not at once."""
_SIGN_OF_LIFE_SECONDS = 15.0


@router.get("")
def overview(
    here: ARunVisit, x: Axis = "iteration", smooth: Annotated[float, Query(ge=0, lt=1)] = 0.0
) -> Response:
    """The overview of a run: curves, figures and its state; else the first page that the run has."""
    run, name, stored = here.run, here.name, here.stored
    if "overview" in run.without:
        first = "rows" if "memory" in run.without else "memory"
        return RedirectResponse(address("runs", name, first), status_code=303)
    if here.wants_csv:
        rows = [row.plain(run.columns) for row in run.rows if row.values]
        return here.csv(f"{name}-iterations", list(rows[0]) if rows else ["iteration"], rows)
    config = stored.config(run)
    origin = read_origin(stored.uri, name)
    state = live_state(stored, run)
    commands = [
        here.command("The same numbers", "status", name),
        here.command("Tag it", "runs", "tag", name, "TAG"),
        here.command("Write a note on it", "runs", "note", name, "TEXT"),
    ]
    if state.status == "stopped":
        commands.insert(0, here.command("What going on would compute", "plan", name))
    if state.status == "finished":
        commands.insert(
            0, here.command("Try it on its held-out tasks", "evaluate", name, "--tasks", "generated")
        )
    return here.page(
        "run.html.j2",
        name,
        commands=commands,
        config=config,
        notes=read_notes(stored.uri, name),
        origin=None if origin is None else origin.describe(),
        state=state,
        tiles=run.tiles,
        table=run.table,
        x=x,
        axes=AXES,
        smooth=smooth,
    )


@router.get("/live")
def live(here: ARunVisit) -> HTMLResponse:
    """The parts of a page that show what the run does now, and its results so far."""
    run = here.run
    state = live_state(here.stored, run)
    return here.pages.part("progress.html.j2", run=run, state=state, tiles=run.tiles, table=run.table)


@router.get("/events")
async def events(here: ARunVisit) -> StreamingResponse:
    """Server-sent events: `state` after each commit of the run, `ended` when no process works on it."""
    await run_in_threadpool(here.stored.run, here.name)
    return StreamingResponse(_events(here.stored, here.name), media_type="text/event-stream")


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


_ITERATIONS = 100
"""Number of iterations that one page of the plan shows."""


@dataclass
class PlannedCell:
    """A stage in an iteration: ids of its artifacts, and the number of those to come."""

    done: list[str] = field(default_factory=list)
    to_come: int = 0
    running: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """A run's plan: its stages in order, its cells by iteration and stage, and how many artifacts it has and
    how many of them are done."""

    stages: Sequence[str]
    cells: Mapping[int, Mapping[str, PlannedCell]]
    count: int
    done: int


@router.get("/plan")
def plan(here: ARunVisit, first: int = 0) -> HTMLResponse:
    """Every stage of a run: done, running, to come."""
    run, name, stored = here.run, here.name, here.stored
    run_config(run.run)  # A plan needs every plug-in of the run.
    at_work = stored.holder(name) is not None
    found = here.kept(f"plan, {at_work}", lambda: _planned(stored, run, at_work=at_work))
    shown = sorted(found.cells)[first : first + _ITERATIONS]
    return here.page(
        "plan.html.j2",
        "Plan",
        [here.crumb("plan", "plan")],
        commands=[here.command("What going on would compute, and why", "plan", name)],
        stages=found.stages,
        cells={iteration: found.cells[iteration] for iteration in shown},
        count=found.count,
        done=found.done,
        first=first,
        step=_ITERATIONS,
        more=first + _ITERATIONS < len(found.cells),
    )


def _planned(stored: Stored, run: RunView, *, at_work: bool) -> PlannedRun:
    nodes = planned_stages(stored, run)
    cells: dict[int, dict[str, PlannedCell]] = {}
    stages: dict[str, None] = {}
    found_running = False
    for node in nodes:
        here = node.place.iteration
        cell = cells.setdefault(here, {}).setdefault(node.stage.name, PlannedCell())
        stages.setdefault(node.stage.name)
        if node.place in run.places:
            cell.done.append(run.places[node.place])
        else:
            cell.to_come += 1
            cell.running = cell.running or (at_work and not found_running)
            found_running = True
    done = sum(len(cell.done) for of in cells.values() for cell in of.values())
    return PlannedRun(_iteration_order(stages, cells), cells, len(nodes), done)


def _iteration_order(stages: dict[str, None], cells: dict[int, dict[str, PlannedCell]]) -> list[str]:
    """Stages that come only before the first iteration, then the others in the order of an iteration."""
    repeated = dict.fromkeys(stage for number, of in cells.items() if number for stage in of)
    return [*(stage for stage in stages if stage not in repeated), *repeated]


@router.get("/settings")
def settings(here: ARunVisit) -> HTMLResponse:
    """The settings that a run was begun with, and the versions that made its artifacts."""
    return here.page(
        "settings.html.j2",
        "Settings",
        [here.crumb("settings", "settings")],
        commands=[here.command("Compare with another run", "diff", here.name, "RUN_B")],
        settings=yaml.safe_dump(here.run.run.config, sort_keys=False, allow_unicode=True),
        versions=here.kept("versions", lambda: version_rows(here.run.history)),
    )
