"""The plan of a run, with what is done, and the run's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from command_line.ui.live import planned_stages
from command_line.ui.pages import Crumb, address
from command_line.ui.routes.common import ThePages, TheStore, run_crumbs
from command_line.ui.stored import Stored, StoredRun
from erl_pipeline.runs.config import run_config
from erl_pipeline.views.report.tables import version_rows

router = APIRouter(prefix="/runs/{name}")

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
def plan(request: Request, name: str, stored: TheStore, pages: ThePages, first: int = 0) -> HTMLResponse:
    """Every stage of a run: done, running, to come."""
    run = stored.run(name)
    run_config(run.run)  # A plan needs every plug-in of the run.
    at_work = stored.holder(name) is not None
    found = stored.kept(name, f"plan, {at_work}", lambda: _planned(stored, run, at_work=at_work))
    shown = sorted(found.cells)[first : first + _ITERATIONS]
    return pages.page(
        request,
        "plan.html.j2",
        title="Plan",
        crumbs=run_crumbs(run, Crumb("plan", address("runs", name, "plan"))),
        commands=[pages.command("What going on would compute, and why", "plan", name)],
        run=run,
        stages=found.stages,
        cells={iteration: found.cells[iteration] for iteration in shown},
        count=found.count,
        done=found.done,
        first=first,
        step=_ITERATIONS,
        more=first + _ITERATIONS < len(found.cells),
    )


def _planned(stored: Stored, run: StoredRun, *, at_work: bool) -> PlannedRun:
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
def settings(request: Request, name: str, stored: TheStore, pages: ThePages) -> HTMLResponse:
    """The settings that a run was begun with, and the versions that made its artifacts."""
    run = stored.run(name)
    return pages.page(
        request,
        "settings.html.j2",
        title="Settings",
        crumbs=run_crumbs(run, Crumb("settings", address("runs", name, "settings"))),
        commands=[pages.command("Compare with another run", "diff", name, "RUN_B")],
        run=run,
        settings=yaml.safe_dump(run.run.config, sort_keys=False, allow_unicode=True),
        versions=stored.kept(name, "versions", lambda: version_rows(run.history)),
    )
