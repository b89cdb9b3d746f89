"""The things in a store that selectors, ids and options name."""

import re
from collections.abc import Sequence

from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError
from storage.lineage.graph import manifests_of
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run, RunStore

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
    found = _at_place(store, run, selector) if is_place(selector) else _by_id(store, run, selector)
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


def artifact_or_row(store: ArtifactStore, run: Run, selector: str) -> str:
    """The id that a selector names: a checkpoint's id if it names a place in the run, else the selector
    itself.

    Raises what `find_checkpoint` raises.
    """
    if not is_place(selector):
        return selector
    found = _at_place(store, run, selector)
    if found is None:
        raise InputError(f"{selector}: run {run.name} has no such checkpoint")
    return found.artifact_id


def _at_place(store: ArtifactStore, run: Run, selector: str) -> LedgerEntry | None:
    # Not above: they import the code of every method and environment, and a row or an id needs none of it.
    from erl_pipeline.runs.config import readable_config
    from erl_pipeline.runs.state import current_checkpoint

    numbered = _ITERATION.fullmatch(selector)
    if selector != "latest" and numbered is None:
        return None
    try:
        config = readable_config(run)
    except ConfigError as error:
        raise ConfigError(
            f"{error}\n  The id of a checkpoint can be given without it: `runs show {run.name}` lists them."
        ) from error
    return current_checkpoint(store, run, config, int(numbered[1]) if numbered else None)


def _by_id(store: ArtifactStore, run: Run, selector: str) -> LedgerEntry | None:
    artifact_id = find_id(store, selector)
    of_run = [entry for entry in run.stages() if entry.kind == "checkpoint"]
    return next((entry for entry in of_run if entry.artifact_id == artifact_id), None)


def beyond_end(run: Run, span: tuple[int, int] | None) -> str:
    """That a span begins after a run's last iteration; empty if it does not."""
    last = max((entry.iteration or 0 for entry in run.stages()), default=0)
    return f"run {run.name} ends with iteration {last}" if span is not None and span[0] > last else ""


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


def manifests_of_run(store: ArtifactStore, run: str | None) -> list[Manifest]:
    """The artifacts of a run and all that they were made from, or all of the store for None."""
    return manifests_of(store, None if run is None else RunStore(store.uri).open(run))
