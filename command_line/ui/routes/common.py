"""What routes need from the application."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from command_line.ui.pages import Crumb, Pages, address
from command_line.ui.stored import Stored, StoredRun


def _stored(request: Request) -> Stored:
    stored: Stored = request.app.state.stored
    return stored


def _pages(request: Request) -> Pages:
    pages: Pages = request.app.state.pages
    return pages


TheStore = Annotated[Stored, Depends(_stored)]
ThePages = Annotated[Pages, Depends(_pages)]


def run_crumbs(run: StoredRun, *further: Crumb) -> list[Crumb]:
    """The breadcrumb path to a page of a run."""
    return [Crumb(run.name, address("runs", run.name)), *further]


def iteration_crumb(run: StoredRun, iteration: int) -> Crumb:
    """An iteration of a run as a step of the path."""
    return Crumb(f"iteration {iteration}", address("runs", run.name, "iterations", iteration))
