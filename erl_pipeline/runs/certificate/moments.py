"""Moments at which a run can be killed: after a time, or in the middle of a commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from storage.artifacts.store import ArtifactStore
from storage.filesystem import list_names, open_root
from storage.runs.run import RunStore

Watch = Callable[[], bool]
"""Says whether the moment has come; it is called repeatedly."""


def after(seconds: float) -> Watch:
    """The moment that many seconds from now."""
    end = time.monotonic() + seconds

    def moment() -> bool:
        return time.monotonic() >= end

    return moment


def before_publication(store: Path, number: int) -> Watch:
    """The moment when the manifest of the `number`-th artifact from now is in its staging folder."""
    return _nth_new(lambda: {str(path) for path in (store / "staging").glob("*/manifest.json")}, number)


def after_publication(store: Path, number: int) -> Watch:
    """The moment when the `number`-th artifact from now is visible; its ledger line is not written yet."""
    return _nth_new(lambda: {str(path) for path in (store / "artifacts").glob("*/*")}, number)


def committed(store: Path, count: int) -> Watch:
    """The moment when a store has `count` artifacts."""
    return lambda: len(list((store / "artifacts").glob("*/*"))) >= count


def then(first: Watch, second: Callable[[], Watch]) -> Watch:
    """The moment that `second` returns; it is called when the first moment has come."""
    following: list[Watch] = []

    def moment() -> bool:
        if not following and first():
            following.append(second())
        return bool(following) and following[0]()

    return moment


def where_it_died(store: Path, run: str) -> str:
    """What a kill interrupted: work or which part of a commit, and after which stage of the ledger."""
    root = open_root(str(store))
    runs = RunStore(str(store))
    entries = runs.open(run).recorded() if run in runs.list() else []
    artifacts = {
        name
        for stage in list_names(root, root.join("artifacts"))
        for name in list_names(root, root.join("artifacts", stage))
    }
    if list(ArtifactStore(str(store)).staging_folder.glob("*/manifest.json")):
        part = "before publication"
    elif artifacts - {entry.artifact_id for entry in entries}:
        part = "before the ledger"
    else:
        part = "at work"
    return f"{part} after {entries[-1].stage if entries else 'nothing'}"


def _nth_new(look: Callable[[], set[str]], number: int) -> Watch:
    seen = look()
    before = len(seen)

    def moment() -> bool:
        seen.update(look())
        return len(seen) >= before + number

    return moment
