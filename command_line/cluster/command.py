"""The command group `erl-pipeline cluster`."""

from __future__ import annotations

import typer

from command_line.cluster.doctor import doctor

app = typer.Typer(help="The machines that a run is computed on.", no_args_is_help=True)
app.command("doctor")(doctor)


@app.callback()
def _group() -> None:
    """Makes a group of a single command."""
