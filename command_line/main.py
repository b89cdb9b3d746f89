"""Entry point of `erl-pipeline`."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from gc import set_threshold
from typing import Annotated

import typer

from command_line import (
    config,
    diff,
    export,
    gc,
    importing,
    schedule,
    serve,
    status,
)
from command_line.cluster.command import app as cluster
from command_line.cluster.trainer_node import trainer_node
from command_line.compare.command import compare
from command_line.doctor.command import doctor
from command_line.env.command import app as env
from command_line.episodes.command import app as episodes
from command_line.evaluate import evaluate
from command_line.lineage.command import app as lineage
from command_line.memory.command import app as memory
from command_line.plan.command import plan
from command_line.replay.command import replay
from command_line.runs import app as runs
from command_line.train import train
from command_line.ui.command import ui
from storage.errors import PipelineError


def print_usage_error(error: typer.TyperException) -> None:
    """Print one `error: …` line on standard error, with the command whose help says what is allowed.

    Without a message nothing is printed: a group of commands, called without a command, has printed its help.
    """
    message = error.format_message().rstrip(".").strip()
    if not message:
        return
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" See: {context.command_path} --help"
    end = "" if message.endswith("?") else "."
    # pydantic, with which typer reads arguments, puts these words before typer's own.
    one_line = " ".join(message.split()).replace(": Value error, ", ": ")
    print(f"error: {one_line[:1].lower()}{one_line[1:]}{end}{hint}", file=sys.stderr)


app = typer.Typer(
    name="erl-pipeline",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"erl-pipeline {importlib.metadata.version('erl-pipeline')}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end."),
    ] = False,
) -> None:
    """Train language-model policies by experiential reinforcement learning."""


app.command("train")(train)
app.command("plan")(plan)
app.command("status")(status.status)
app.command("evaluate")(evaluate)
app.command("compare")(compare)
app.command("report")(status.report)
app.command("export")(export.export)
app.command("replay")(replay)
app.command("diff")(diff.diff)
app.command("ui")(ui)
app.command("serve")(serve.serve)
app.command("trainer-node")(trainer_node)
app.command("gc")(gc.gc)
app.command("doctor")(doctor)
app.command("plugins")(config.plugins)
app.add_typer(importing.app, name="import")
app.add_typer(config.app, name="config")
app.add_typer(schedule.app, name="schedule")
app.add_typer(env, name="env")
app.add_typer(cluster, name="cluster")
app.add_typer(memory, name="memory")
app.add_typer(lineage, name="lineage")
app.add_typer(episodes, name="episodes")
app.add_typer(runs, name="runs")


def main() -> None:
    """Run a command. Errors that a user can act on become a message and exit status 2."""
    # Torch reads it at its import. By default its threads spin while they wait: no slower on idle cores, but
    # several times slower if another program needs the same cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # huggingface_hub and transformers read it at their import: their progress bars would break ours.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # By default 700 new objects start a search for unreachable cycles. That takes a fifth of the time of
    # imports, and sometimes a third of a second in an iteration.
    set_threshold(50_000, 10, 10)
    try:
        sys.exit(app(prog_name="erl-pipeline", standalone_mode=False))
    except typer.TyperException as error:
        print_usage_error(error)
        sys.exit(error.exit_code)
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
