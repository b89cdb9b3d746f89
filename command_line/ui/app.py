"""The page that shows a store: its routes, its guard, and its error pages."""

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from command_line.ui import (
    lineage,
    log_pages,
    machine_pages,
    memory_pages,
    row_pages,
    run_pages,
    runs_pages,
    serving_pages,
)
from command_line.ui.access import Access, Guard
from command_line.ui.filters import AddressError
from command_line.ui.pages import Crumb, Pages, address
from command_line.ui.stored import Stored
from storage import errors

_STATIC = Path(__file__).parent / "static"
_NOT_UNDERSTOOD = "The address cannot be understood"
_HEADINGS: tuple[tuple[type[errors.PipelineError], int, str], ...] = (
    (errors.PrunedFileError, 410, "This was removed by retention"),
    (errors.DamagedArtifact, 500, "An artifact is damaged"),
    (errors.StoreError, 500, "The store cannot be read here"),
    (errors.ConfigError, 409, "This run is of another version"),
    (AddressError, 400, _NOT_UNDERSTOOD),
    (errors.InputError, 404, "There is no such thing in this store"),
    (errors.PipelineError, 500, "This cannot be shown"),
)
"""Kind of error, HTTP status and heading; the first entry that fits is used."""


def create_app(store_uri: str, access: Access) -> ASGIApp:
    """The page over a store; nothing in it writes."""
    app = FastAPI(title="erl-pipeline", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.stored = Stored(store_uri)
    app.state.pages = Pages(store_uri)
    for pages in (
        runs_pages,
        run_pages,
        row_pages,
        memory_pages,
        log_pages,
        machine_pages,
        serving_pages,
        lineage,
    ):
        app.include_router(pages.router)
    app.mount(
        "/static",
        StaticFiles(directory=_STATIC, packages=[("erl_pipeline.views.report", "static")]),
        name="static",
    )
    for kind in (errors.PipelineError, FileNotFoundError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _error_page)
    # Around everything, so that the responses to faults of the program have the security headers too.
    return Guard(app, access)


def _error_page(request: Request, error: Exception) -> HTMLResponse:
    match error:
        case errors.PipelineError():
            status, heading = next(
                (status, text) for kind, status, text in _HEADINGS if isinstance(error, kind)
            )
            message = str(error)
        case FileNotFoundError():
            status, heading = 410, "A file is gone"
            message = f"{error}. It was deleted while the page was made; load it again."
        case HTTPException():
            status, heading = error.status_code, "There is no such page"
            message = f"Nothing is at {request.url.path}."
        case RequestValidationError():
            status, heading = 400, _NOT_UNDERSTOOD
            message = "; ".join(
                f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors()
            )
        case _:
            status, heading = 500, "This page has a fault"
            message = f"{type(error).__name__}; the terminal that serves it shows more."
    pages: Pages = request.app.state.pages
    return pages.page(
        request,
        "error.html.j2",
        title=heading,
        crumbs=_run_crumbs(request),
        answer=status,
        message=message,
        commands=[pages.command("Check this machine and the store", "doctor")],
    )


def _run_crumbs(request: Request) -> list[Crumb]:
    """The run of the page that was asked for, if the store has it."""
    name: str = request.path_params.get("name", "")
    try:
        known = name in request.app.state.stored.names()
    except errors.PipelineError:  # The page tells of the first error.
        known = False
    return [Crumb(name, address("runs", name))] if known else []
