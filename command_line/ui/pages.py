"""Rendering of pages: the templates, their filters, what every page shows and what routes need, and tables
as CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlencode

from fastapi import Depends, Request
from jinja2 import PackageLoader
from starlette.responses import HTMLResponse, Response

from command_line.output import command
from command_line.ui.stored import RunView, Stored
from erl_pipeline.views.report.templating import templates
from storage.texts import storable

T = TypeVar("T")
_BEGINS_A_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""What spreadsheets take for the beginning of a formula."""


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


class Visit:
    """A request for a page, with the store and the templates that answer it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.stored: Stored = request.app.state.stored
        self.pages: Pages = request.app.state.pages
        self.command = self.pages.command

    @property
    def wants_csv(self) -> bool:
        """Whether the table of the page is asked for as CSV: by `format=csv` in the address, or by the header
        `Accept`."""
        accepted = self.request.headers.get("accept", "")
        return self.request.query_params.get("format") == "csv" or accepted.startswith("text/csv")

    def csv(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
        """A table as a CSV file of this name."""
        return Response(
            csv_text(columns, rows),
            media_type="text/csv; charset=utf-8",
            headers={"content-disposition": f'attachment; filename="{name}.csv"'},
        )

    def page(self, template: str, title: str, crumbs: Sequence[Crumb] = (), **values: Any) -> HTMLResponse:
        """A whole page."""
        return self.pages.page(self.request, template, title=title, crumbs=crumbs, **values)


class RunVisit(Visit):
    """A request for a page of a run."""

    def __init__(self, request: Request, name: str) -> None:
        super().__init__(request)
        self.name = name

    @cached_property
    def run(self) -> RunView:
        """Raises InputError for an unknown name, StoreError for a run that cannot be read."""
        return self.stored.run(self.name)

    def kept(self, what: str, make: Callable[[], T]) -> T:
        """See `Stored.kept`."""
        return self.stored.kept(self.name, what, make)

    def crumb(self, title: str, *path: str | int, **query: Any) -> Crumb:
        """A page of the run as a step of the breadcrumb path."""
        return Crumb(title, address("runs", self.name, *path, **query))

    def page(self, template: str, title: str, crumbs: Sequence[Crumb] = (), **values: Any) -> HTMLResponse:
        """A whole page; the path to it begins with the run."""
        path = [self.crumb(self.name), *crumbs]
        return super().page(template, title, path, run=self.run, **values)


AVisit = Annotated[Visit, Depends(Visit)]
ARunVisit = Annotated[RunVisit, Depends(RunVisit)]


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows under a heading, as RFC 4180 has them. A text that a spreadsheet would compute gets an apostrophe
    before it, with which it is a text there too; numbers stay numbers."""
    written = io.StringIO()
    table = csv.writer(written)
    table.writerow(map(_cell, columns))
    table.writerows([_cell(row[column]) for column in columns] for row in rows)
    return storable(written.getvalue())


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case datetime():
            return value.isoformat()
        case str():
            return f"'{value}" if value.startswith(_BEGINS_A_FORMULA) else value
    return json.dumps(value, ensure_ascii=False)
