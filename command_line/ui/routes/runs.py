"""The table of runs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from command_line.ui.routes.common import ThePages, TheStore
from command_line.ui.run_table import SortKey, run_lines

router = APIRouter()


@router.get("/")
def runs(
    request: Request,
    stored: TheStore,
    pages: ThePages,
    q: str = "",
    method: str = "",
    status: str = "",
    sort: SortKey = "age",
    rising: bool = False,
) -> HTMLResponse:
    """All runs of the store."""
    lines = run_lines(stored, q, method, status, sort, rising=rising)
    return pages.page(
        request,
        "runs.html.j2",
        title="Runs",
        commands=[pages.command("Train another run", "train", "CONFIG")],
        lines=lines,
        q=q,
        method=method,
        status=status,
        sort=sort,
        rising=rising,
        methods=sorted({line.method for line in lines if line.method}),
    )
