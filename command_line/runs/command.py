"""The command group `erl-pipeline runs`."""

from __future__ import annotations

import typer

from command_line.runs.listing import list_runs
from command_line.runs.removing import remove
from command_line.runs.showing import show

app = typer.Typer(help="The runs of a store: list them, look at one, remove one.", no_args_is_help=True)
app.command("list")(list_runs)
app.command("show")(show)
app.command("remove")(remove)
