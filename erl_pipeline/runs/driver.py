"""The driver of a run: only the driver writes the run's ledger and reports to the trackers."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from erl_pipeline.config.plugins import operational_part, plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from erl_pipeline.plan.runner import Runner, RunnerCall
from erl_pipeline.plan.sources import code_packages
from erl_pipeline.plan.stage import Listener, StageOutcome, WorkerSettings
from erl_pipeline.runs.config import continued_settings, is_blank
from erl_pipeline.runs.log import logged
from erl_pipeline.runs.state import place_of
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError, disk_errors
from storage.runs.documents import remove_warnings
from storage.runs.ledger import LedgerEntry, latest_entries
from storage.runs.run import Run, RunStore
from storage.upkeep.runs import remove_run

Observer = Callable[[LedgerEntry], None]
"""Is called with the ledger entry of every artifact that a run computes or reuses."""


@dataclass
class OpenRun:
    """A run that is being worked on, with its lock held."""

    config: RunConfig
    store: ArtifactStore
    run: Run
    listener: Listener
    stop: threading.Event
    observers: list[Observer] = field(default_factory=list)
    reused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many artifacts of each (run that made them, stage) were reused by this process."""
    _entries: list[LedgerEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._entries = self.run.recorded()
        self._recorded = {place_of(entry): entry for entry in self._entries}

    @property
    def recorded(self) -> dict[StageKey, str]:
        """The artifact that the run has at each place."""
        return {place: entry.artifact_id for place, entry in self._recorded.items()}

    def entries(self) -> list[LedgerEntry]:
        """Every line of the ledger, the oldest first."""
        return list(self._entries)

    def stages(self) -> list[LedgerEntry]:
        """The latest ledger entry of each place."""
        return latest_entries(self._entries)

    @contextmanager
    def observed_by(self, observers: Sequence[Observer]) -> Iterator[None]:
        """Call these observers too, within the block."""
        before, self.observers = self.observers, [*self.observers, *observers]
        try:
            yield
        finally:
            self.observers = before

    def record(self, planned: PlannedStage, outcome: StageOutcome) -> None:
        """Write an outcome to the ledger, unless it is there already; call the observers."""
        if outcome.reused:
            self.reused[outcome.made_by, outcome.stage] += 1
        known = self._recorded.get(planned.place)
        if known is None or known.artifact_id != outcome.artifact_id or not outcome.reused:
            self._enter(
                planned.iteration,
                planned.place,
                planned.stage.output,
                outcome.artifact_id,
                outcome.reused,
                outcome.seconds,
            )
        self._notify(planned.place)

    def share(self, entries: Iterable[LedgerEntry]) -> None:
        """Enter artifacts of another run in this run's ledger, each once."""
        for entry in entries:
            place = place_of(entry)
            if place not in self._recorded:
                self._enter(entry.iteration, place, entry.kind, entry.artifact_id, True, 0.0)
                self._notify(place)

    def _enter(
        self,
        iteration: int | None,
        place: StageKey,
        kind: ArtifactKind,
        artifact_id: str,
        reused: bool,
        seconds: float,
    ) -> None:
        entry = self.run.record(
            iteration,
            place.stage,
            artifact_id,
            kind=kind,
            key=place.key,
            reused=reused,
            seconds=seconds,
        )
        self._entries.append(entry)
        self._recorded[place] = entry

    def _notify(self, place: StageKey) -> None:
        for observer in self.observers:
            observer(self._recorded[place])


@contextmanager
def open_run(
    config: RunConfig, store_uri: str, listener: Listener, stop: threading.Event
) -> Iterator[OpenRun]:
    """Create or continue the run `config.name` in a store, holding its lock and writing its log. A run that
    failed before it had any artifact gets the settings of `config`; any other gets those that may change. One
    that is created here and then refused is removed again.

    Raises:
        ConfigError: the run exists with other settings; see `refuse_other_settings`.
        RunBusy: another process is working on it.
        StoreError: the store cannot be written.
    """
    runs = RunStore(store_uri)
    settings = config.model_dump(mode="json")
    is_new = config.name not in runs.list()
    run = runs.open_or_create(config.name, settings)
    with _unless_refused(store_uri, run, is_new), disk_errors(store_uri), run.lock():
        if run.config != settings and is_blank(store_uri, run):
            remove_warnings(store_uri, run.name)
            run.begin_again(settings)
        run.keep_settings(continued_settings(run, config))
        store = ArtifactStore(store_uri, config.resources.threads, config.store.cache())
        store.clear_staging()  # A run that lacks nothing begins no artifact that would do so.
        from erl_pipeline.runs.machine_use import sampled_machine  # psutil is for processes that train

        with (
            logged(store_uri, run.name, listener) as logged_listener,
            sampled_machine(store_uri, run.name),
        ):
            yield OpenRun(config, store, run, logged_listener, stop)


@contextmanager
def _unless_refused(store_uri: str, run: Run, is_new: bool) -> Iterator[None]:
    """Remove a new run whose settings, files or machine do not allow to begin it."""
    try:
        yield
    except (ConfigError, InputError):
        if is_new and not run.recorded():
            remove_run(store_uri, run.name)
        raise


def execute_run(
    opened: OpenRun,
    plan: Plan,
    trusted: frozenset[StageKey],
    on_outcome: Callable[[StageOutcome], None] = lambda _outcome: None,
    makers: Callable[[], Sequence[PlannedStage]] = tuple,
) -> None:
    """Execute a plan for an open run, by the runner that its configuration names.

    Args:
        trusted: places of the run whose artifacts are looked at only if something is made from them.
        on_outcome: is called with every outcome, after it is recorded.
        makers: the stages that made what the plan begins from, if anything of it has to be made again.
    """
    config = opened.config
    worker = WorkerSettings(
        store_uri=opened.store.uri,
        run=opened.run.name,
        threads=config.resources.threads,
        engine=operational_part("engines", config.engine),
        cache=config.store.cache(),
        deterministic=config.resources.determinism == "bytes",
        trainer=operational_part("trainers", config.trainer),
        weights_in_memory=plugins("engines")[config.engine.type].value.reads_memory(config.engine),
    )
    packages = tuple(each for of_owner in code_packages(config).values() for each in of_owner)
    call = RunnerCall(
        worker,
        config.resources,
        opened.listener,
        opened.stop,
        packages,
        config.nodes_to_find,
        frozenset(node.stage.name for node in plan.nodes),
    )

    def record(planned: PlannedStage, outcome: StageOutcome) -> None:
        with opened.store.reading():
            opened.record(planned, outcome)
            on_outcome(outcome)

    def body(runner: Runner) -> None:
        execute(
            plan,
            Execution(
                store=opened.store,
                runner=runner,
                worker=worker,
                resources=config.resources,
                listener=opened.listener,
                record=record,
                stopped=opened.stop.is_set,
                trusted=trusted,
                makers=makers,
                state_every=config.retention.optimizer_every,
                background_bytes=config.store.background_bytes(),
            ),
        )

    plugins("runners")[config.runner.type].value.run(config.runner, call, body)
