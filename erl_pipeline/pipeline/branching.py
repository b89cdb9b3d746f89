"""Runs that begin where another run was: what they share with it, and where their own work begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.pipeline.iteration import IterationState, stage_rank
from erl_pipeline.pipeline.outcome import StageOutcome, StageRunner
from erl_pipeline.pipeline.stored_run import StoredRun, stored_outcome
from erl_pipeline.stages.index_memory import INDEX_STAGE
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.runs.origin import BranchOrigin, OfflineOrigin, read_origin, write_origin
from storage.runs.run import Run, RunStore

T = TypeVar("T")


def establish_origin(store_uri: str, run: Run, origin: BranchOrigin | OfflineOrigin) -> None:
    """Make a new run one that begins from another; for a run that has this origin already nothing changes.

    Call it while the run's lock is held. Raises ConfigError for a run that began otherwise.
    """
    found = read_origin(store_uri, run.name)
    if found == origin:
        return
    if found is not None or run.stages():
        begun = "by itself" if found is None else found.describe()
        raise ConfigError(
            f"run {run.name} exists and was begun {begun}, not {origin.describe()}. "
            "Give the new run another name with --as."
        )
    write_origin(store_uri, run.name, origin)


def begin_branch(
    context: RunContext, origin: BranchOrigin, runner: StageRunner
) -> tuple[IterationState, StageRunner]:
    """Enter in the branch's ledger what it shares; its state before its first iteration, and a runner that
    takes shared stages from the store.

    Raises InputError when the run it comes from lacks something before the branch.
    """
    stored = StoredRun(RunStore(context.store.uri).open(origin.run))
    shared = stored.before(origin.iteration, origin.stage)
    context.share(shared)
    return stored.state_before(origin.iteration), SharedStages(runner, context.store, stored, origin)


class SharedStages:
    """A `StageRunner` that takes the stages before a branch from the store and leaves all others to another.

    In the iteration of the branch only: earlier iterations are not run at all.
    """

    def __init__(
        self, inner: StageRunner, store: ArtifactStore, stored: StoredRun, origin: BranchOrigin
    ) -> None:
        self._inner = inner
        self._store = store
        self._stored = stored
        self._origin = origin
        self._iteration = 0

    def call(self, stage: str, function: Callable[..., StageOutcome], *args: Any) -> StageOutcome:
        if self._shares(stage):
            entry = self._stored.entry(self._iteration, stage)
            if stage == INDEX_STAGE:
                entry = self._stored.memory(self._iteration) or entry
            return stored_outcome(self._store, entry)
        return self._inner.call(stage, function, *args)

    def map(
        self, stage: str, function: Callable[..., StageOutcome], context: RunContext, items: Sequence[Any]
    ) -> list[StageOutcome]:
        if self._shares(stage):
            return [stored_outcome(self._store, entry) for entry in self._stored.shards(self._iteration)]
        return self._inner.map(stage, function, context, items)

    def iteration(self, iteration: int, body: Callable[[], T]) -> T:
        self._iteration = iteration
        return self._inner.iteration(iteration, body)

    def _shares(self, stage: str) -> bool:
        return self._iteration == self._origin.iteration and stage_rank(stage) < stage_rank(
            self._origin.stage
        )
