"""Rendering of pages: the templates, their filters, what every page shows and what routes need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from jinja2 import PackageLoader
from starlette.responses import HTMLResponse

from command_line.output import command
from command_line.ui.stored import Stored
from erl_pipeline.views.report.templating import templates
from storage.texts import storable


@dataclass(frozen=True)
class Crumb:
    """A step of the breadcrumb path to a page."""

    title: str
    address: str


@dataclass(frozen=True)
class TerminalCommand:
    """A command that a reader may want to run next in a terminal, and what it is for."""

    what: str
    line: str


class Pages:
    """Renders the templates of one server."""

    def __init__(self, store_uri: str) -> None:
        self._store_uri = store_uri
        self._templates = templates(PackageLoader("command_line.ui"), address)
        self._templates.globals.update(store_uri=store_uri, link=link)

    def command(self, what: str, *line: str) -> TerminalCommand:
        """A command over this store."""
        return TerminalCommand(what, command([*line, "--store", self._store_uri]))

    def page(
        self,
        request: Request,
        template: str,
        *,
        title: str,
        crumbs: Sequence[Crumb] = (),
        commands: Sequence[TerminalCommand] = (),
        answer: int = 200,
        **values: Any,
    ) -> HTMLResponse:
        """A whole page."""
        text = self._templates.get_template(template).render(
            request=request, title=title, crumbs=crumbs, commands=commands, **values
        )
        return HTMLResponse(storable(text), status_code=answer)

    def part(self, template: str, **values: Any) -> HTMLResponse:
        """A part of a page, which an open page inserts."""
        return HTMLResponse(storable(self._templates.get_template(template).render(**values)))


def address(*parts: str | int, **query: Any) -> str:
    """A path on this server; each part is one quoted segment."""
    path = "/" + "/".join(quote(str(part), safe="") for part in parts)
    given = [(name.rstrip("_"), value) for name, value in query.items() if value not in (None, "", [])]
    return path + (f"?{urlencode(given, doseq=True)}" if given else "")


def link(request: Request, **changes: Any) -> str:
    """The address of the open page with some parameters changed; None removes one."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in changes]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"{request.url.path}?{urlencode([*kept, *new], doseq=True)}"


def _stored(request: Request) -> Stored:
    stored: Stored = request.app.state.stored
    return stored


def _pages(request: Request) -> Pages:
    pages: Pages = request.app.state.pages
    return pages


TheStore = Annotated[Stored, Depends(_stored)]
ThePages = Annotated[Pages, Depends(_pages)]


def run_crumbs(run: str, *further: Crumb) -> list[Crumb]:
    """The breadcrumb path to a page of a run."""
    return [Crumb(run, address("runs", run)), *further]


def iteration_crumb(run: str, iteration: int) -> Crumb:
    """An iteration of a run as a step of the path."""
    return Crumb(f"iteration {iteration}", address("runs", run, "iterations", iteration))
