"""The command group `erl-pipeline env`."""

from __future__ import annotations

import typer

from command_line.env.new import new
from command_line.env.playing import play
from command_line.env.qualifying import qualify
from command_line.env.showing import list_environments, show

app = typer.Typer(
    help="Environments: list, show, play by hand, qualify, begin your own.", no_args_is_help=True
)
app.command("list")(list_environments)
app.command("show")(show)
app.command("play")(play)
app.command("qualify")(qualify)
app.command("new")(new)
