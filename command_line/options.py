"""Options and arguments that several commands have.

Every help text and every completion imports this module, so it imports what is heavy only where it is used.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from storage.errors import InputError, PipelineError

DEFAULT_STORE = "store"
_STORE_VARIABLE = "ERL_PIPELINE_STORE"


def store_without_option() -> str:
    """The store that a command takes without --store."""
    return os.environ.get(_STORE_VARIABLE) or DEFAULT_STORE


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of runs in the store that the command line has named so far; none if it cannot be read."""
    from storage.runs.run import RunStore

    store = context.params.get("store") or store_without_option()
    try:
        names = RunStore(store).list()
    except PipelineError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _existing_store(uri: str) -> str:
    """The store's URI. Raises InputError for a folder that does not exist: a bucket is not asked."""
    from storage.filesystem import open_root

    root = open_root(_named_store(uri))
    if root.local and not Path(root.path).exists():
        raise InputError(f"no store at {uri}; --store or ERL_PIPELINE_STORE names another")
    return uri


def _named_store(uri: str) -> str:
    """The store's URI. Raises InputError for an empty one, such as an unset variable of a shell: it would be
    the current folder."""
    if not uri.strip():
        raise InputError("--store names no store; for the current folder give --store .")
    return uri


def _store_option(check: Callable[[str], str] = _named_store) -> Any:
    return typer.Option(
        "--store",
        envvar=_STORE_VARIABLE,
        metavar="URI",
        help="Where runs and artifacts are: a folder, or a URI such as s3://bucket/path.",
        callback=check,
    )


Store = Annotated[str, _store_option()]
"""A store, which the command makes if it does not exist."""
ExistingStore = Annotated[str, _store_option(_existing_store)]
"""A store that must exist: the command makes none."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of a run in the store.", autocompletion=run_names)
]
OnlyRun = Annotated[
    str | None,
    typer.Option(
        metavar="RUN", help="Look at this run only, not at the whole store.", autocompletion=run_names
    ),
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A configuration file, in YAML.")]
ServingConfig = Annotated[
    Path | None,
    typer.Option("--config", metavar="CONFIG", help="Settings of serving, in YAML; default: the defaults."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as rollouts.group_size=4."),
]

Iterations = Annotated[
    str | None, typer.Option("--iteration", metavar="N|A..B", help="Only these iterations.")
]

LARGEST_NUMBER = 1_000_000_000
"""The largest number of rows, or of an iteration, that an option may have."""
LONGEST_DAYS = 36_500
"""The most days that an age may have in an option."""

LastIteration = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Last iteration; default: the configuration's.")
]


def iteration_span(text: str | None) -> tuple[int, int] | None:
    """`3` or `3..7` as the first and last iteration; None for None.

    Raises InputError for anything else.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", text)
    if found is None:
        raise InputError(f"--iteration {text}: give one, such as 7, or a range, such as 3..7.")
    first = int(found[1])
    last = int(found[2] or first)
    if first > last:
        raise InputError(f"--iteration {text}: the first is after the last.")
    return first, last


SELECTOR = "ID|latest|iteration:N"
"""The form of a selector, for help texts."""
