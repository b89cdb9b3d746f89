"""Where two runs begin to differ."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from command_line.ui.pages import Crumb, address
from command_line.ui.routes.common import ThePages, TheStore
from erl_pipeline.evaluation.first_difference import first_divergence

router = APIRouter()


@router.get("/divergence")
def divergence(request: Request, a: str, b: str, stored: TheStore, pages: ThePages) -> HTMLResponse:
    """The first artifact, row and token, or tensor, in which two runs differ."""
    runs = [stored.run(name) for name in (a, b)]
    mark = stored.mark(b)
    found = stored.kept(
        a,
        f"divergence from {b} {mark}",
        lambda: first_divergence(stored.artifacts, *(run.history for run in runs)),
    )
    commands = [pages.command("The same in the terminal", "diff", a, b, "--first-divergence")]
    if found.parting is not None and found.parting.place.iteration:
        place = found.parting.place
        commands.append(
            pages.command(
                "Compute the first again, compare bytes",
                "replay",
                a,
                "--from",
                place.stage,
                "--iteration",
                str(place.iteration),
            )
        )
    return pages.page(
        request,
        "divergence.html.j2",
        title=f"Where {a} and {b} diverge",
        crumbs=[
            Crumb("compare", address("compare", run=[a, b])),
            Crumb("first divergence", address("divergence", a=a, b=b)),
        ],
        commands=commands,
        runs=runs,
        found=found,
    )
