"""Runs of a store: their settings, their ledger of stages, and the lock that keeps them to one process.

Layout: `STORE/runs/<name>/{run.json, ledger.jsonl, lock}`.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.errors import InputError, RunBusy, StoreError
from storage.filesystem import StoreRoot, list_names, open_root, read_bytes, store_errors, write_new
from storage.ledger import Ledger, LedgerEntry

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Run:
    """One run in a store."""

    def __init__(self, root: StoreRoot, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.config: dict[str, Any] = dict(config)
        """The resolved configuration that the run was created with."""
        self._root = root
        self._ledger = Ledger(root, root.join("runs", name, "ledger.jsonl"))

    def record(
        self,
        iteration: int | None,
        stage: str,
        artifact_id: str,
        *,
        key: str = "",
        reused: bool,
        seconds: float,
    ) -> None:
        """Write down that a stage has given an artifact; it is on disk when this returns.

        `key` tells apart several artifacts of one stage in one iteration. `seconds` is wall time.
        """
        self._ledger.append(
            LedgerEntry(
                iteration=iteration,
                stage=stage,
                key=key,
                artifact_id=artifact_id,
                reused=reused,
                seconds=seconds,
                recorded_at=datetime.now(UTC),
            )
        )

    def stages(self) -> list[LedgerEntry]:
        """The latest entry of each (iteration, stage, key), in the order they were first recorded."""
        latest: dict[tuple[int | None, str, str], LedgerEntry] = {}
        for entry in self._ledger.read():
            latest[entry.iteration, entry.stage, entry.key] = entry
        return list(latest.values())

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; the kernel frees it when the process ends, however it ends.

        The lock is a local file: for an object store it keeps apart the processes of one machine only.

        Raises RunBusy, naming process and host, when another has it.
        """
        path = self._root.scratch / "runs" / self.name / "lock"
        with store_errors("lock", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunBusy(
                    f"run {self.name} is being worked on by {_holder(path)}. "
                    "Wait for it, stop it, or start another run with another name."
                ) from None
            holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder, 0)
            yield
        finally:
            os.close(descriptor)


class RunStore:
    """The runs of one store."""

    def __init__(self, store_uri: str) -> None:
        self._root = open_root(store_uri)

    def create(self, name: str, config: Mapping[str, Any]) -> Run:
        """Begin a run with its resolved configuration (JSON types).

        Raises InputError for a bad name or one that is taken, StoreError when the store cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise InputError(f"{name!r} is no name of a run: use up to 64 letters, digits, '.', '_' and '-'.")
        content = json.dumps(
            {"name": name, "config": dict(config)}, indent=1, ensure_ascii=False, allow_nan=False
        )
        if not write_new(self._root, self._path(name), (content + "\n").encode("utf-8")):
            raise InputError(f"run {name} exists already in store {self._root.uri}.")
        return self.open(name)

    def open(self, name: str) -> Run:
        """An existing run. Raises InputError, with the runs there are, for an unknown name."""
        content = read_bytes(self._root, self._path(name))
        if content is None:
            known = self.list()
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Its runs: {', '.join(known) or 'none'}."
            raise InputError(f"no run {name} in store {self._root.uri}. {hint}")
        try:
            config = json.loads(content)["config"]
        except (ValueError, KeyError) as error:
            raise StoreError(f"{self._path(name)} cannot be read: {error}") from error
        return Run(self._root, name, config)

    def list(self) -> list[str]:
        """Names of all runs, sorted."""
        names = list_names(self._root, self._root.join("runs"))
        return [name for name in names if self._root.fs.exists(self._path(name))]

    def _path(self, name: str) -> str:
        return self._root.join("runs", name, "run.json")


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Settings that differ, one `dotted.key: old -> new` for each."""
    before, after = dict(_flatten(old)), dict(_flatten(new))
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in dict.fromkeys([*before, *after])
        if key not in before or key not in after or before[key] != after[key]
    ]


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False)


def _holder(path: Path) -> str:
    """Who wrote the lock file; between locking and writing there is a moment in which nobody did."""
    try:
        holder = json.loads(path.read_text())
        return f"process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError):
        return "another process"
