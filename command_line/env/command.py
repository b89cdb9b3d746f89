"""The command group `erl-pipeline env`."""

from __future__ import annotations

import typer

from command_line.env.new import new

app = typer.Typer(help="Environments: begin one of your own.", no_args_is_help=True)
app.command("new")(new)


@app.callback()
def _group() -> None:
    """With one command alone it would not be a group."""
