"""Selectors, which name a checkpoint of a run: `latest`, `iteration:N`, or an artifact's id."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from storage.errors import ConfigError, InputError

if TYPE_CHECKING:
    from storage.artifacts.store import ArtifactStore
    from storage.runs.ledger import LedgerEntry
    from storage.runs.run import Run

SELECTOR = "ID|latest|iteration:N"
"""The form of a selector, for help texts."""

_ITERATION = re.compile(r"iteration:(\d{1,9})")


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
