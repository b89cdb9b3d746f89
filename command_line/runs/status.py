"""`erl-pipeline status|report`: how far a run is, its results by iteration, and its report as one HTML
page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import print_json, print_line


def status(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Show how far a run is, iteration by iteration."""
    from command_line.runs.iterations import show_status

    show_status(run, store, json)


def report(
    run: RunName,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it; else beside the run.")
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write the report of a run: curves, whole episodes, settings and lineage on one page."""
    from command_line.stored_run import run_folder
    from erl_pipeline.runs.state import write_run_report
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.runs import find_unrecorded

    opened, artifacts = RunStore(store).open(run), ArtifactStore(store)
    page = write_run_report(artifacts, opened, output or run_folder(store, run) / "report.html")
    if unrecorded := find_unrecorded(artifacts, opened, opened.recorded()):
        print(f"Warning: {unrecorded.sentence}", file=sys.stderr)
    if json:
        print_json({"run": run, "report": str(page)})
    else:
        print_line(f"Report: {page}")
