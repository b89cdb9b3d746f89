"""What the pages read from a store: runs, and values computed for each, kept until its ledger changes."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeVar

from command_line.ui.cached import KnownFiles, KnownLineage, MemorySearches, Sealed
from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation.history import CurvePoint, StageRecord, learning_curve, stored_records
from erl_pipeline.evaluation.iterations import IterationRow, history_rows
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.config import method_columns, readable_config
from erl_pipeline.runs.planning import recorded_ids
from erl_pipeline.runs.state import begun_iterations, completed_iterations
from erl_pipeline.views.report.tables import Table, Tile, held_out_tile, iteration_table, tiles
from storage.artifacts.manifest import Manifest
from storage.artifacts.watched import WatchedStore
from storage.errors import PipelineError
from storage.filesystem import StoreRoot, open_root
from storage.lineage.graph import current_entries
from storage.memory.entries import MEMORY
from storage.runs.documents import IMPORTED
from storage.runs.ledger import LedgerEntry
from storage.runs.locks import Holder, run_holder, run_mark
from storage.runs.run import Run, RunStore, is_run_name
from storage.tables.training import TRAINING_RECORD
from storage.tables.trajectories import TRAJECTORIES

RunStatus = Literal["at work", "finished", "stopped", "unfinished", "begun", "other"]
"""`stopped`: no process works on it, and iterations are missing. `unfinished`: iterations are missing, and
another machine may work on it, which cannot be seen in an object store. `begun`: no stage yet. `other`: a run
that is not trained, such as imported trajectories, or whose settings cannot be read."""

T = TypeVar("T")


@dataclass(frozen=True)
class RunView:
    """A run as it was when its ledger was last read; `history` is in the order of the iterations.

    `config` is None if this version of the program cannot read the settings; `problem` says why.
    """

    run: Run
    recorded: Sequence[LedgerEntry]
    history: Sequence[StageRecord]
    missing: int
    """Number of artifacts that the ledger names but whose manifests are missing or damaged."""
    config: RunConfig | None
    problem: str = ""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def without(self) -> Sequence[str]:
        """The pages that it does not have: only a training has an overview and a plan, and what was imported
        or collected has no memory either."""
        if IMPORTED in self.run.config:
            return ("overview", "plan", "memory")
        return ("overview", "plan") if "method" not in self.run.config and "memory" in self.run.config else ()

    @cached_property
    def entries(self) -> Sequence[LedgerEntry]:
        """The latest entry of each (iteration, stage, key) that counts (`current_entries`)."""
        return self.run.stages()

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return () if self.config is None else method_columns(self.config)

    @cached_property
    def rows(self) -> Sequence[IterationRow]:
        return history_rows(self.history, self.columns)

    @cached_property
    def curve(self) -> Sequence[CurvePoint]:
        return learning_curve(self.history)

    @cached_property
    def tiles(self) -> Sequence[Tile]:
        """The run's headline figures, held-out success first."""
        held_out = held_out_tile(self.curve)
        return [*([] if held_out is None else [held_out]), *tiles(self.history, self.columns)]

    @cached_property
    def table(self) -> Table:
        """One row for each iteration."""
        return iteration_table([row for row in self.rows if row.values], self.columns, titles=True)

    @cached_property
    def places(self) -> Mapping[StageKey, str]:
        """The artifact at each place of the plan that has one."""
        return recorded_ids(self.entries)

    @cached_property
    def done(self) -> int:
        return 0 if self.config is None else completed_iterations(self.config, self.entries)

    @property
    def total(self) -> int:
        """Iterations that it is to have, as far as its records tell."""
        if self.config is None:
            return 0
        return max(self.config.iterations, self.done, begun_iterations(self.entries))

    @cached_property
    def last_recorded(self) -> datetime | None:
        return max((entry.recorded_at for entry in self.recorded), default=None)

    def of_iteration(self, iteration: int) -> Sequence[StageRecord]:
        """The records of an iteration; those of 0 come before the first."""
        return self.of_iterations((iteration, iteration))

    def of_iterations(self, span: tuple[int, int] | None) -> Sequence[StageRecord]:
        """The records from one iteration to another, both included; all of them for None."""
        if span is None:
            return self.history
        first, last = span
        start = bisect_left(self.history, first, key=_iteration)
        return self.history[start : bisect_right(self.history, last, key=_iteration)]


def _iteration(record: StageRecord) -> int:
    return record.iteration


class ReadRun(Run):
    """A run whose ledger was read already; its methods return what was read."""

    def __init__(
        self, root: StoreRoot, run: Run, recorded: Sequence[LedgerEntry], current: Sequence[LedgerEntry]
    ) -> None:
        super().__init__(root, run.name, run.config)
        self._recorded, self._current = tuple(recorded), tuple(current)

    def recorded(self) -> list[LedgerEntry]:
        return list(self._recorded)

    def stages(self) -> list[LedgerEntry]:
        return list(self._current)


class Stored:
    """The store that the pages show."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.artifacts, self.runs, self._root = WatchedStore(uri), RunStore(uri), open_root(uri)
        self.records, self.trajectories = KnownFiles(TRAINING_RECORD), KnownFiles(TRAJECTORIES)
        self.entries, self.lineage = KnownFiles(MEMORY), KnownLineage(self.artifacts)
        self.searches, self.sealed = MemorySearches(), Sealed()
        self._kept: dict[tuple[str, str], tuple[Any, Any]] = {}

    def names(self) -> Sequence[str]:
        """Names of the runs."""
        return self.runs.list()

    def run(self, name: str) -> RunView:
        """A run. Raises InputError for an unknown name, StoreError for a run that cannot be read."""
        return self.kept(name, "run", lambda: self._read(name))

    def config(self, run: RunView) -> RunConfig:
        """A run's configuration. Raises ConfigError or InputError if there is none that can be used."""
        return run.config if run.config is not None else readable_config(run.run)

    def holder(self, name: str) -> Holder | None:
        """The process that works on a run."""
        return run_holder(self._root, name)

    def status(self, run: RunView) -> RunStatus:
        """A run's status; see `RunStatus`."""
        if self.holder(run.name) is not None:
            return "at work"
        if run.config is None:
            return "other"
        if not run.recorded:
            return "begun"
        if run.done >= run.total:
            return "finished"
        return "stopped" if self._root.local else "unfinished"

    def mark(self, name: str) -> tuple[int, ...] | None:
        """A mark that changes with a run's ledger, and when files are collected; None if changes cannot be
        seen."""
        return run_mark(self._root, name) if is_run_name(name) else None

    def kept(self, name: str, what: str, make: Callable[[], T]) -> T:
        """The value `what` of a run, computed by `make`, and again only after the ledger has changed."""
        mark = self.mark(name)
        found = self._kept.get((name, what))
        if found is None or mark is None or found[0] != mark:
            found = self._kept[name, what] = mark, make()
        value: T = found[1]
        return value

    def manifests(self, run: RunView) -> list[Manifest]:
        """All artifacts of a run, as they are now."""
        return [record.manifest for record in run.history]

    def _read(self, name: str) -> RunView:
        run = self.runs.open(name)
        recorded = run.recorded()
        entries = current_entries(self.artifacts, recorded)
        history = sorted(stored_records(self.artifacts, entries), key=lambda record: record.iteration)
        try:
            config, problem = readable_config(run), ""
        except PipelineError as error:
            config, problem = None, str(error)
        read = ReadRun(self._root, run, recorded, entries)
        return RunView(read, recorded, history, len(entries) - len(history), config, problem)
