"""`erl-pipeline report`: writes a run's report as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import print_json, print_line


def report(
    run: RunName,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where to write it; else beside the run."),
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Write the report of a run: curves, whole episodes, settings and lineage on one page."""
    from command_line.run_state import run_folder
    from erl_pipeline.runs.report import write_run_report
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    opened = RunStore(store).open(run)
    page = write_run_report(ArtifactStore(store), opened, output or run_folder(store, run) / "report.html")
    if json:
        print_json({"run": run, "report": str(page)})
    else:
        print_line(f"Report: {page}")
