"""`erl-pipeline lineage export|graph`: a run's lineage for other programs, and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName, iteration_span
from command_line.output import print_json, print_line


def export(
    run: RunName,
    openlineage: Annotated[
        str,
        typer.Option(
            "--openlineage",
            metavar="URL|FILE",
            help="Where the events go: http(s)://host:port of a consumer, or a file of JSON lines.",
        ),
    ],
    repository: Annotated[
        str | None,
        typer.Option("--repository", metavar="URL", help="Where the code is, to be named in the events."),
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Send a run's stages as OpenLineage events, a START and a COMPLETE for each artifact."""
    from erl_pipeline.views.lineage.openlineage import export_run
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore

    sent = export_run(ArtifactStore(store), RunStore(store).open(run), openlineage, repository)
    if json:
        print_json({"run": run, "target": openlineage, "events": sent})
    else:
        print_line(f"Run {run}: {sent:,} OpenLineage events to {openlineage}.")


def graph(
    run: RunName,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the drawing goes: .svg or .html.")
    ],
    iteration: Annotated[
        str | None,
        typer.Option("--iteration", metavar="N|A..B", help="Iterations to draw; default: the last 6."),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option("--of", metavar="ID", help="Only this artifact, what it came from and what it reached."),
    ] = None,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Draw a run's artifacts, a row for each iteration and a column for each stage."""
    from erl_pipeline.runs.config import run_columns
    from erl_pipeline.views.lineage.drawing import draw
    from erl_pipeline.views.lineage.grid import lay_out
    from storage.artifacts.store import ArtifactStore
    from storage.errors import InputError
    from storage.filesystem import store_errors
    from storage.runs.run import RunStore

    if output.suffix not in (".svg", ".html"):
        raise InputError(f"--output {output}: name a file that ends in .svg or .html.")
    runs = RunStore(store)
    columns = run_columns(runs.open(run))
    grid = lay_out(ArtifactStore(store), runs, run, columns, iteration_span(iteration), of)
    with store_errors("write", output):
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(draw(grid, output.suffix), encoding="utf-8")
    if json:
        print_json({"output": str(output), "artifacts": grid.artifacts, "iterations": grid.iterations})
    else:
        print_line(f"Drawing: {output}  {grid.caption}")
