"""Options and arguments that several commands have, and the things that they name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError, PipelineError
from storage.filesystem import open_root
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore


def run_names(context: typer.Context, incomplete: str) -> list[str]:
    """Names of runs in the store that the command line has named so far; none if it cannot be read."""
    store = context.params.get("store") or os.environ.get("ERL_PIPELINE_STORE") or "store"
    try:
        names = RunStore(store).list()
    except PipelineError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def _existing_store(uri: str) -> str:
    """The store's URI. Raises InputError for a folder that does not exist: a bucket is not asked."""
    root = open_root(uri)
    if root.local and not Path(root.path).exists():
        raise InputError(f"no store at {uri}; --store or ERL_PIPELINE_STORE names another")
    return uri


def _store_option(check: Callable[[str], str] | None = None) -> Any:
    return typer.Option(
        "--store",
        envvar="ERL_PIPELINE_STORE",
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
        "--run",
        metavar="RUN",
        help="Look at this run only, not at the whole store.",
        autocompletion=run_names,
    ),
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A configuration file, in YAML.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, such as rollouts.group_size=4."),
]

Iterations = Annotated[
    str | None, typer.Option("--iteration", metavar="N|A..B", help="Only these iterations.")
]

LastIteration = Annotated[
    int | None,
    typer.Option("--iterations", min=1, metavar="N", help="Last iteration; default: the configuration's."),
]

DEFAULT_STORE = "store"


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


def beyond_end(run: Run, span: tuple[int, int] | None) -> str:
    """That a span begins after a run's last iteration; empty if it does not."""
    last = max((entry.iteration or 0 for entry in run.stages()), default=0)
    return f"run {run.name} ends with iteration {last}" if span is not None and span[0] > last else ""


SELECTOR = "ID|latest|iteration:N"
"""The form of a selector, for help texts."""

_ITERATION = re.compile(r"iteration:(\d{1,9})")


_EXAMPLES = 5
_ID = re.compile(r"[0-9a-f]{1,64}")


def is_place(selector: str) -> bool:
    """Whether a selector names a place in a run rather than an id."""
    return selector == "latest" or selector.startswith("iteration:")


def find_checkpoint(store: ArtifactStore, run: Run, selector: str) -> LedgerEntry:
    """The checkpoint of a run that a selector names; iteration 0 has the one that the run began with.

    For an id, or the beginning of one, only the ledger is read, so the code of the environment and of the
    method need not be installed.

    Raises InputError when there is no such checkpoint, ConfigError when the selector names a place and the
    run's configuration cannot be read.
    """
    found = _at_place(run, selector) if is_place(selector) else _by_id(store, run, selector)
    if found is None:
        raise InputError(
            f"{selector}: run {run.name} has no such checkpoint; allowed are latest, iteration:N with an "
            "iteration that is done, and the id of a checkpoint of the run"
        )
    return found


def find_id(store: ArtifactStore, selector: str) -> str:
    """The id of the artifact whose id begins with these characters.

    Raises InputError for none or several, and for a word that is no id.
    """
    if not _ID.fullmatch(selector):
        raise InputError(f"no artifact {selector}; allowed: an id, latest, iteration:N")
    return store.resolve(selector)


def artifact_or_row(run: Run, selector: str) -> str:
    """The id that a selector names: a checkpoint's id if it names a place in the run, else the selector
    itself.

    Raises what `find_checkpoint` raises.
    """
    if not is_place(selector):
        return selector
    found = _at_place(run, selector)
    if found is None:
        raise InputError(f"{selector}: run {run.name} has no such checkpoint")
    return found.artifact_id


def _at_place(run: Run, selector: str) -> LedgerEntry | None:
    from erl_pipeline.runs.config import readable_config
    from erl_pipeline.runs.state import latest_checkpoint

    numbered = _ITERATION.fullmatch(selector)
    if selector != "latest" and numbered is None:
        return None
    try:
        config = readable_config(run)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\n  The id of a checkpoint can be given without it: `runs show {run.name}` lists them."
        ) from error
    return latest_checkpoint(config, run.stages(), int(numbered[1]) if numbered else None)


def _by_id(store: ArtifactStore, run: Run, selector: str) -> LedgerEntry | None:
    artifact_id = find_id(store, selector)
    of_run = [entry for entry in run.stages() if entry.kind == "checkpoint"]
    return next((entry for entry in of_run if entry.artifact_id == artifact_id), None)


def the_one(found: Sequence[str], identifier: str, what: str, how_to_find: str) -> str:
    """The id that a user means: the one among `found`, which all begin with `identifier`, or `identifier`
    itself. Raises InputError for none or several.

    Args:
        what: what has these ids, such as `episodes`.
        how_to_find: a sentence for a user who gave the id of nothing.
    """
    if not identifier:
        raise InputError(f"Give an id of {what}, or the beginning of one.")
    if identifier in found:
        return identifier
    if not found:
        raise InputError(how_to_find)
    if len(found) > 1:
        some = ", ".join(found[:_EXAMPLES])
        raise InputError(f"{len(found)} {what} begin with {identifier!r}: {some}. Give more of the id.")
    return found[0]


def manifests_of(store: ArtifactStore, run: str | None) -> list[Manifest]:
    """The artifacts of a run and all that they were made from, or all of the store for None."""
    from storage.lineage import reachable

    if run is None:
        return list(store.list())
    return reachable(store, [entry.artifact_id for entry in RunStore(store.uri).open(run).stages()])
