"""Runs of a store: their settings, their ledger of stages, and the lock that gives each to one process.

Layout: `STORE/runs/<name>/{run.json, ledger.jsonl, lock}`. In an object store `lease/` takes the place of the
lock, and every lease has its own ledger, `ledger-<number of the lease>.jsonl`. So if a machine that was
thought dead writes again, it overwrites nothing of its successor.
"""

import difflib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.sealing import read_record, record_bytes, says_other_version
from storage.errors import DamagedRecord, InputError
from storage.filesystem import StoreRoot, list_names, open_root, read_bytes, remove, replace_file, write_new
from storage.runs.lease import LEASE_SECONDS, Lease
from storage.runs.ledger import Ledger, LedgerEntry, latest_entries
from storage.runs.locks import lock_run, working_on

_LEDGER = re.compile(r"ledger(-\d{8})?\.jsonl")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_run_name(text: str) -> bool:
    """Whether a run may have this name; what may not is never used as a path."""
    return _NAME.fullmatch(text) is not None


class Run:
    """One run in a store."""

    def __init__(self, root: StoreRoot, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.config: dict[str, Any] = dict(config)
        """The resolved configuration that the run was created with; see `keep_settings`."""
        self._root = root
        self._lease: Lease | None = None
        self._ledgers: dict[str, Ledger] = {}

    def record(
        self,
        iteration: int | None,
        stage: str,
        artifact_id: str,
        *,
        kind: ArtifactKind,
        key: str = "",
        reused: bool,
        seconds: float,
    ) -> LedgerEntry:
        """Record in the ledger that a stage has given an artifact; returns the line, which is then on disk.

        `key` distinguishes several artifacts of one stage in one iteration. `seconds` is wall time.

        Raises RunBusy when another machine has taken over the run.
        """
        self.require_lock()
        entry = LedgerEntry(
            iteration=iteration,
            stage=stage,
            kind=kind,
            key=key,
            artifact_id=artifact_id,
            reused=reused,
            seconds=seconds,
            recorded_at=datetime.now(UTC),
        )
        self._ledger(self._own_ledger()).append(entry)
        return entry

    def stages(self) -> list[LedgerEntry]:
        """The latest entry of each (iteration, stage, key), in the order they were first recorded."""
        return latest_entries(self.recorded())

    def recorded(self) -> list[LedgerEntry]:
        """All entries of the ledger, the oldest first."""
        known: set[str] = set()
        return [entry for name in self._ledger_names() for entry in self._ledger(name).read(known)]

    def computed(self) -> set[str]:
        """Artifacts that the ledger says this run computed; nothing is checked."""
        return {each for name in self._ledger_names() for each in self._ledger(name).computed()}

    def mend_ledger(self, missing: Callable[[Sequence[LedgerEntry]], Sequence[LedgerEntry]]) -> str:
        """Make a damaged ledger again from its whole lines; what was wrong, empty if nothing was. The damaged
        files are kept in `damaged-<digits>` beside it. The run has to be locked.

        Args:
            missing: gives the entries that must be there too, from those that were found.
        """
        self.require_lock()
        try:
            recorded, damage = self.recorded(), ""
        except DamagedRecord as error:
            recorded, damage = [], str(error)
        ledgers = [self._ledger(name) for name in self._ledger_names()]
        if not damage:
            for entry in missing(recorded):
                self._ledger(self._own_ledger()).append(entry)
            return ""
        kept = f"damaged-{secrets.token_hex(4)}"
        for path in [path for ledger in ledgers for path in ledger.files()]:
            content = read_bytes(self._root, path)
            assert content is not None
            name = path.rsplit("/", 1)[-1]
            write_new(self._root, self._root.join("runs", self.name, kept, name), content)
        # In the order in which they are read, never by time: a clock may have gone back.
        whole = {entry.model_dump_json(): entry for ledger in ledgers for entry in ledger.readable()}
        found = list(whole.values())
        own = self._ledger(self._own_ledger())
        own.rewrite([*found, *missing(found)])
        for ledger in ledgers:
            if ledger is not own:
                for path in reversed(ledger.files()):
                    remove(self._root, path)
        return damage

    def _ledger_names(self) -> list[str]:
        if self._root.local:
            return ["ledger.jsonl"]
        names = list_names(self._root, self._root.join("runs", self.name))
        # `ledger.jsonl` was written without a lease, and is read first. A Ledger reads its further parts. One
        # of which only the head is left is damaged.
        found = {name.replace(".head.json", ".jsonl") for name in names}
        return sorted((n for n in found if _LEDGER.fullmatch(n)), key=lambda name: (len(name), name))

    def _own_ledger(self) -> str:
        return "ledger.jsonl" if self._lease is None else f"ledger-{self._lease.number:08d}.jsonl"

    def begin_again(self, config: Mapping[str, Any]) -> None:
        """Give the run another resolved configuration. The run has to be locked.

        Raises InputError for a run that has recorded an artifact, which is of its own configuration.
        """
        self.require_lock()
        if self.recorded():
            raise InputError(f"run {self.name} has artifacts already and keeps its settings.")
        self.keep_settings(config)

    def keep_settings(self, config: Mapping[str, Any]) -> None:
        """Store the resolved configuration that the run goes on with. The caller answers for it that the
        artifacts of the run are of this configuration too. The run has to be locked."""
        self.require_lock()
        if config == self.config:
            return
        content = record_bytes({"name": self.name, "config": dict(config)})
        replace_file(self._root, self._root.join("runs", self.name, "run.json"), content)
        self.config = dict(config)

    def require_lock(self) -> None:
        """Raise RunBusy when another machine has taken over the run since it was locked."""
        if self._lease is not None:
            self._lease.require()

    def _ledger(self, name: str) -> Ledger:
        if name not in self._ledgers:
            path = self._root.join("runs", self.name, name)
            self._ledgers[name] = Ledger(self._root, path, self.name, lambda: self._last_seal_before(name))
        return self._ledgers[name]

    def _last_seal_before(self, name: str) -> str:
        """The seal of the last line of the ledgers that come before one."""
        names = self._ledger_names()
        earlier = names[: names.index(name)] if name in names else names
        seals = (self._ledger(each).last_seal() for each in reversed(earlier))
        return next((seal for seal in seals if seal), "")

    @contextmanager
    def lock(self, lease_seconds: float = LEASE_SECONDS) -> Iterator[None]:
        """Hold the run for this process; it is free again when the process ends, however it ends.

        In an object store this also excludes other machines. A machine that dies loses the run
        `lease_seconds` after it last renewed its lease.

        Raises RunBusy, which names process and host, when another process holds it.
        """
        with lock_run(self._root, self.name, lease_seconds) as lease:
            self._lease = lease
            try:
                yield
            finally:
                self._lease = None


class RunStore:
    """The runs of one store."""

    def __init__(self, store_uri: str) -> None:
        self._root = open_root(store_uri)

    def create(self, name: str, config: Mapping[str, Any]) -> Run:
        """Begin a run with its resolved configuration (JSON types).

        Raises InputError for an invalid or taken name, StoreError when the store cannot be written.
        """
        if not is_run_name(name):
            raise InputError(f"{name!r} cannot name a run: use up to 64 letters, digits, '.', '_' and '-'.")
        content = record_bytes({"name": name, "config": dict(config)})
        if not write_new(self._root, self._path(name), content):
            raise InputError(f"run {name} exists already in store {self._root.uri}.")
        return self.open(name)

    def open_or_create(self, name: str, config: Mapping[str, Any]) -> Run:
        """A run, begun with this configuration if there is none. Of two processes that begin it at the same
        time, one creates it; whichever locks it first works on it.

        Raises what `create` and `open` do, except that the name may be taken.
        """
        if name in self.list():
            return self.open(name)
        try:
            return self.create(name, config)
        except InputError:
            if name not in self.list():
                raise
            return self.open(name)

    def open(self, name: str) -> Run:
        """An existing run.

        Raises InputError for an unknown name (with a suggestion or the known names), StoreError for a damaged
        run.json.
        """
        content = read_bytes(self._root, self._path(name)) if is_run_name(name) else None
        if content is None:
            known = self.list()
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Its runs: {', '.join(known) or 'none'}."
            raise InputError(f"no run {name} in store {self._root.uri}. {hint}")
        try:
            record = read_record(content, self._path(name))
        except DamagedRecord as error:
            other = says_other_version(content)
            raise _damaged(f"{self._path(name)} was changed after it was written{other}", name) from error
        if record["name"] != name:
            raise _damaged(f"{self._path(name)} holds the settings of run {record['name']}", name)
        return Run(self._root, name, record["config"])

    def mend_settings(self, name: str, config: Mapping[str, Any]) -> str:
        """Write a damaged run.json again, with these settings; what was wrong, empty if nothing was."""
        try:
            self.open(name)
        except DamagedRecord as error:
            content = record_bytes({"name": name, "config": dict(config)})
            with lock_run(self._root, name):
                replace_file(self._root, self._path(name), content)
            return str(error)
        return ""

    def list(self) -> list[str]:
        """Names of all runs, sorted."""
        names = list_names(self._root, self._root.join("runs"))
        return [name for name in names if self._root.fs.exists(self._path(name))]

    def computed_by_others(self, name: str) -> set[str]:
        """Artifacts that the ledgers of the other runs say they computed. Damaged records are read too."""
        others = (Run(self._root, other, {}) for other in self.list() if other != name)
        return {artifact_id for other in others for artifact_id in other.computed()}

    def holder(self, name: str) -> str | None:
        """The process or machine that works on a run, as text; None if there is none."""
        return working_on(self._root, name)

    def _path(self, name: str) -> str:
        return self._root.join("runs", name, "run.json")


def _damaged(what: str, name: str) -> DamagedRecord:
    return DamagedRecord(
        f"{what}. Put it back from a copy, or write it again from the run's configuration: "
        f"`erl-pipeline train CONFIG --name {name} --check`."
    )


def flat_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Every setting by its dotted key, its value as JSON."""
    return dict(_flatten(config))


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False)
