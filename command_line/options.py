"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Store = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="ERL_PIPELINE_STORE",
        metavar="URI",
        help="Where runs and artifacts are: a folder, or a URI such as s3://bucket/path.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run in the store.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A configuration file, in YAML.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as rollouts.group_size=4."),
]

DEFAULT_STORE = "store"
