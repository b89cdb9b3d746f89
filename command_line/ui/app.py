"""`erl-pipeline ui`: serves a page that shows a store; its routes, its guard, and its error pages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from command_line.options import DEFAULT_STORE, ExistingStore
from command_line.ui import lineage, memory_pages, row_pages, run_pages, runs_pages
from command_line.ui.access import Access, Guard
from command_line.ui.pages import Pages
from command_line.ui.stored import Stored
from storage.errors import (
    ConfigError,
    DamagedArtifact,
    InputError,
    PipelineError,
    PrunedFileError,
    StoreError,
)

_STATIC = Path(__file__).parent / "static"
_HEADINGS: tuple[tuple[type[PipelineError], int, str], ...] = (
    (PrunedFileError, 410, "This was removed by retention"),
    (DamagedArtifact, 500, "An artifact is damaged"),
    (StoreError, 500, "The store cannot be read here"),
    (ConfigError, 409, "This run is of another version"),
    (InputError, 404, "There is no such thing in this store"),
    (PipelineError, 500, "This cannot be shown"),
)
"""Kind of error, HTTP status and heading; the first entry that fits is used."""


def create_app(store_uri: str, access: Access) -> ASGIApp:
    """The page over a store; nothing in it writes."""
    app = FastAPI(title="erl-pipeline", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.stored = Stored(store_uri)
    app.state.pages = Pages(store_uri)
    for pages in (runs_pages, run_pages, row_pages, memory_pages, lineage):
        app.include_router(pages.router)
    app.mount(
        "/static",
        StaticFiles(directory=_STATIC, packages=[("erl_pipeline.views.report", "static")]),
        name="static",
    )
    app.add_exception_handler(PipelineError, _problem)
    app.add_exception_handler(FileNotFoundError, _gone)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(Exception, _fault)
    # Around everything, so that the responses to faults of the program have the security headers too.
    return Guard(app, access)


def _problem(request: Request, error: Exception) -> HTMLResponse:
    status, heading = next((status, text) for kind, status, text in _HEADINGS if isinstance(error, kind))
    return _error_page(request, status, heading, str(error))


def _gone(request: Request, error: Exception) -> HTMLResponse:
    return _error_page(
        request, 410, "A file is gone", f"{error}. It was deleted while the page was made; load it again."
    )


def _http(request: Request, error: Exception) -> HTMLResponse:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error_page(request, status, "There is no such page", f"Nothing is at {request.url.path}.")


def _fault(request: Request, error: Exception) -> HTMLResponse:
    return _error_page(
        request,
        500,
        "This page has a fault",
        f"{type(error).__name__}; the terminal that serves it shows more.",
    )


def _unreadable(request: Request, error: Exception) -> HTMLResponse:
    details = error.errors() if isinstance(error, RequestValidationError) else []
    said = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in details)
    return _error_page(request, 400, "The address cannot be understood", said or "A parameter is wrong.")


def _error_page(request: Request, status: int, heading: str, message: str) -> HTMLResponse:
    pages: Pages = request.app.state.pages
    return pages.page(
        request,
        "error.html.j2",
        title=heading,
        answer=status,
        message=message,
        commands=[pages.command("Check this machine and the store", "doctor")],
    )


DEFAULT_PORT = 4300

Port = Annotated[
    int, typer.Option("--port", min=0, max=65535, help="Where the page listens; 0: a free port.")
]
Host = Annotated[
    str,
    typer.Option(
        "--host", help="Address to listen on. Beyond this machine, the page asks for the token it prints."
    ),
]


def ui(store: ExistingStore = DEFAULT_STORE, port: Port = DEFAULT_PORT, host: Host = "127.0.0.1") -> None:
    """Serve a page that shows a store, until Ctrl-C: runs, episodes, memory, lineage. It only reads."""
    import uvicorn

    from command_line.ui.access import TOKEN, LimitedProtocol, access_for, listen

    access = access_for(host)
    app = create_app(store, access)
    with listen(host, port) as listener:
        bound = listener.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        token = "" if access.token is None else f"?{TOKEN}={access.token}"
        print(f"Page: http://{shown}:{bound}/{token}", file=sys.stderr, flush=True)
        if access.token is not None:
            print("Whoever has this address can read the whole store.", file=sys.stderr, flush=True)
        config = uvicorn.Config(
            app, http=LimitedProtocol, log_level="warning", access_log=False, server_header=False
        )
        # Live streams stay open for hours; Ctrl-C must not wait for them.
        config.timeout_graceful_shutdown = 1
        uvicorn.Server(config).run(sockets=[listener])
