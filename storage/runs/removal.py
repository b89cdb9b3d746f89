"""Removing a run: its settings, ledger and report. Artifacts stay until garbage collection."""

from __future__ import annotations

import shutil
from contextlib import suppress

from storage.errors import InputError
from storage.filesystem import StoreRoot, open_root, store_errors
from storage.runs.origin import read_origin
from storage.runs.run import RunStore


def remove_run(store_uri: str, name: str) -> None:
    """Remove a run from a store. A kill leaves a run that can be removed again.

    Raises:
        InputError: there is no such run, or another one was begun from it and needs its plan.
        RunBusy: a process works on it.
        StoreError: the store cannot be written.
    """
    root, runs = open_root(store_uri), RunStore(store_uri)
    run = runs.open(name)
    needed = [other for other in runs.list() if _began_from(store_uri, other, name)]
    if needed:
        raise InputError(
            f"run {name} cannot be removed: {', '.join(needed)} began from it and cannot go on without it. "
            f"Remove {'that' if len(needed) == 1 else 'those'} first."
        )
    with run.lock(), store_errors("remove", root.join("runs", name)):
        _remove_files(root, name)


def _began_from(store_uri: str, other: str, name: str) -> bool:
    origin = read_origin(store_uri, other)
    return origin is not None and origin.run == name


def _remove_files(root: StoreRoot, name: str) -> None:
    """Remove `run.json` and the lock last: a ledger without `run.json` would belong to no run."""
    record, local = root.join("runs", name, "run.json"), root.scratch / "runs" / name
    if not root.local:
        kept = (record, root.join("runs", name, "lease"))
        for path in root.fs.find(root.join("runs", name)):
            if not str(path).startswith(kept):
                root.fs.rm_file(path)
    for path in local.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in ("run.json", "lock"):
            path.unlink()
    root.fs.rm_file(record)
    (local / "lock").unlink()
    with suppress(OSError):  # the folder is not empty if a run of this name was begun just now
        local.rmdir()
