"""Several runs side by side: curves, settings, code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from command_line.ui.code_differences import code_differences
from command_line.ui.pages import Crumb
from command_line.ui.routes.common import ThePages, TheStore
from command_line.ui.run_table import varied_settings
from command_line.ui.stored import StoredRun
from erl_pipeline.views.report.curves import AXES, Axis, ChartedRun, curves_as_numbers
from storage.errors import InputError

router = APIRouter()

MOST_RUNS = 12

Chosen = Annotated[list[str], Query()]


@router.get("/compare")
def compare(
    request: Request,
    stored: TheStore,
    pages: ThePages,
    run: Chosen = [],  # noqa: B006 (FastAPI copies it)
    x: Axis = "iteration",
    smooth: Annotated[float, Query(ge=0, lt=1)] = 0.0,
) -> HTMLResponse:
    """The page that compares the chosen runs."""
    names = list(dict.fromkeys(run))
    if not 1 <= len(names) <= MOST_RUNS:
        raise InputError(f"Choose 1 to {MOST_RUNS} runs in the table of runs; {len(names)} are chosen.")
    runs = [stored.run(name) for name in names]
    settings = varied_settings({each.name: each.run.config for each in runs})
    commands = []
    if len(runs) == 2:
        commands = [
            pages.command("The same in the terminal", "diff", *names),
            pages.command("Where they diverge", "diff", *names, "--first-divergence"),
        ]
    return pages.page(
        request,
        "compare.html.j2",
        title=" and ".join(names) if len(names) < 3 else f"{len(names)} runs",
        crumbs=[Crumb("compare", str(request.url.path) + f"?{request.url.query}")],
        commands=commands,
        runs=runs,
        settings=settings,
        code=code_differences(runs),
        x=x,
        axes=AXES,
        smooth=smooth,
    )


@router.get("/curves")
def curves(stored: TheStore, run: Chosen = [], x: Axis = "iteration") -> dict[str, Any]:  # noqa: B006
    """The curves of runs, as numbers."""
    runs = [stored.run(name) for name in dict.fromkeys(run)][:MOST_RUNS]
    if len(runs) == 1:
        return stored.kept(runs[0].name, f"curves by {x}", lambda: _numbers(runs, x))
    return _numbers(runs, x)


def _numbers(runs: Sequence[StoredRun], x: Axis) -> dict[str, Any]:
    return curves_as_numbers([ChartedRun(each.name, each.history, each.columns) for each in runs], x)
