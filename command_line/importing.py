"""`erl-pipeline import`: bring in what was made elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from command_line.options import DEFAULT_STORE, Json, Store
from command_line.output import print_json, print_line, print_table
from command_line.program import command

app = typer.Typer(help="Bring in what was made elsewhere.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Trajectories, in .parquet or .jsonl.")]
Name = Annotated[str, typer.Option("--as", metavar="NAME", help="Name of the run that will hold them.")]


@app.callback()
def _group() -> None:
    """Bring in what was made elsewhere."""


@app.command()
def trajectories(file: File, name: Name, store: Store = DEFAULT_STORE, json: Json = False) -> None:
    """Check trajectories against the schema and commit them, so that `replay --offline` can train on them."""
    from erl_pipeline.stages.rollouts.import_trajectories import import_trajectories

    imported = import_trajectories(store, file, name)
    rows = sum(each.rows for each in imported)
    if json:
        print_json(
            {"run": name, "store": store, "rows": rows, "iterations": [asdict(each) for each in imported]}
        )
        return
    print_table(
        [
            {
                "iter": str(each.iteration),
                "rows": f"{each.rows:,}",
                "artifact": each.trajectories_id[:12],
                "": "was in the store" if each.reused else "",
            }
            for each in imported
        ],
        left=["artifact", ""],
    )
    span = f"{imported[0].iteration}..{imported[-1].iteration}"
    print_line(f"Run {name}: {rows:,} trajectories of {len(imported)} iterations, all as the schema says.")
    print_line("Try next:")
    words = [
        "replay",
        name,
        "--offline",
        "--iterations",
        span,
        "--config",
        "CONFIG",
        "--as",
        f"{name}-trained",
    ]
    print_line("  " + command([*words, *([] if store == DEFAULT_STORE else ["--store", store])]))
