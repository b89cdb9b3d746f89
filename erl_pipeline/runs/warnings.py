"""Watching a run for signs of trouble. Each kind of warning is recorded, given once, and may stop the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from erl_pipeline.evaluation.history import stored_records
from erl_pipeline.evaluation.warnings import (
    ROWS,
    Found,
    rollout_warnings,
    settings_warnings,
    update_warnings,
)
from erl_pipeline.runs.driver import OpenRun
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, DamagedArtifact
from storage.runs.ledger import LedgerEntry
from storage.runs.warnings import RunWarning, read_warnings, record_warning
from storage.tables.trajectories import TRAJECTORIES, scan_trajectories


class WarningWatch:
    """Looks at each iteration when it is complete, and gives each kind of warning once.

    Args:
        tell: functions that are called with each new warning, besides the run's listener.
    """

    def __init__(self, opened: OpenRun, tell: Iterable[Callable[[RunWarning], None]] = ()) -> None:
        self._opened = opened
        self._settings = opened.config.warnings
        self._tell = list(tell)
        self._said = {warning.kind: warning for warning in read_warnings(opened.store.uri, opened.run.name)}

    def before_run(self) -> None:
        """Look at the configuration. Raises ConfigError if it, or an earlier start, gave a warning that stops
        the run."""
        for warning in self._said.values():
            self._stop_on(warning)
        self._say(0, settings_warnings(self._settings, self._opened.config.rollouts.group_size))

    def after_iteration(self, iteration: int) -> None:
        """Look at an iteration that is complete. Raises ConfigError for a warning that stops the run."""
        if not iteration:
            return
        oldest = iteration - (self._settings.no_advantage or 1) + 1
        entries = [entry for entry in self._opened.stages() if oldest <= (entry.iteration or 0) <= iteration]
        by_iteration = [
            stored_records(self._opened.store, [entry for entry in entries if entry.iteration == number])
            for number in range(max(1, oldest), iteration + 1)
        ]
        self._say(iteration, update_warnings(self._settings, by_iteration))
        rows = _rows(self._opened.store, [entry for entry in entries if entry.iteration == iteration])
        if rows is not None:
            self._say(iteration, rollout_warnings(self._settings, rows))

    def _say(self, iteration: int, found: Iterable[Found]) -> None:
        new: list[RunWarning] = []
        for each in found:
            if each.kind in self._said:
                continue
            warning = RunWarning(
                kind=each.kind,
                iteration=iteration,
                text=each.text,
                setting=each.setting,
                said_at=datetime.now(UTC),
            )
            record_warning(self._opened.store.uri, self._opened.run.name, warning)
            self._said[each.kind] = warning
            new.append(warning)
            self._opened.listener.warn(warning.sentence)
            for tell in self._tell:
                tell(warning)
        for warning in new:
            self._stop_on(warning)

    def _stop_on(self, warning: RunWarning) -> None:
        if warning.kind in self._settings.stop_on:
            raise ConfigError(
                f"warnings.stop_on: {warning.kind} stops the run. {warning.sentence} What was committed is "
                f"kept; take {warning.kind} out of warnings.stop_on to go on."
            )


def _rows(store: ArtifactStore, entries: Iterable[LedgerEntry]) -> pl.DataFrame | None:
    """The columns that warnings read of an iteration's trajectories; None if it has no trajectories."""
    files: list[Path] = []
    for entry in entries:
        # A damaged artifact is made again, and is looked at then.
        with suppress(DamagedArtifact):
            if entry.kind == "trajectories":
                shard = store.open(entry.artifact_id)
                tables = [file.path for file in shard.files if file.table == TRAJECTORIES.name]
                files += [shard.rows_path(name) for name in tables]
    return scan_trajectories(files).select(ROWS).collect() if files else None
