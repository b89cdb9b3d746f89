"""Retention by the rules of a run's configuration: its driver applies them after each iteration, and
maintenance applies them to stored runs.

A plan says which artifacts the run has: after an edit, the ledger also names those of the earlier code.
"""

from collections.abc import Callable, Mapping, Sequence

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import Plan, StageKey
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.policies.checkpoints import lacks_state
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.planning import plan_beyond, recorded_ids
from erl_pipeline.runs.state import completed_iterations, place_of
from storage.artifacts.store import ArtifactStore
from storage.errors import DamagedArtifact
from storage.runs.documents import IMPORTED
from storage.runs.ledger import LedgerEntry
from storage.runs.run import Run
from storage.upkeep.retention import PlannedPruning, RunRetention

_LISTING = ("rollouts", "tasks")
"""Kinds of artifacts that list others; whoever reads them also reads what they list."""


def along_plan(plan: Plan, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The ledger entries of artifacts that the plan has too."""
    return [
        entry
        for entry in entries
        if (node := plan.by_place.get(place_of(entry))) is not None and node.artifact_id == entry.artifact_id
    ]


def still_needed(plan: Plan, complete: Mapping[StageKey, str], is_whole: Callable[[str], bool]) -> set[str]:
    """The artifacts that a plan still needs: inputs of its stages that are not complete.

    Of an input that is gone, or that has lost files, the inputs are needed too: it may have to be made again.

    Args:
        complete: the artifacts that nothing has to be done for.
    """
    needed: set[str] = set()
    to_follow = [
        input_id
        for node in plan.nodes
        if complete.get(node.place) != node.artifact_id
        for input_id in node.recipe.inputs.values()
    ]
    while to_follow:
        artifact_id = to_follow.pop()
        if artifact_id in needed:
            continue
        needed.add(artifact_id)
        maker = plan.by_id.get(artifact_id)
        if maker is None or complete.get(maker.place) != artifact_id:
            continue
        if maker.stage.output in _LISTING or not is_whole(artifact_id):
            to_follow += maker.recipe.inputs.values()
    return needed


def is_whole(store: ArtifactStore, artifact_id: str) -> bool:
    """Whether an artifact is in the store, has the state of its optimizer, and retention has removed none of
    its files; no file is hashed."""
    try:
        manifest = store.find(artifact_id)
        return manifest is not None and not store.pruned(manifest).files and not lacks_state(manifest)
    except DamagedArtifact:
        return False


def retain_run(store: ArtifactStore, run: Run) -> list[PlannedPruning]:
    """Apply the rules of a run's stored configuration now; return what was pruned.

    What today's code would make otherwise does not count, and stays.

    Raises RunBusy when a process is working on the run; its driver then applies the rules itself. Raises
    ConfigError and InputError as `plan_for` does.
    """
    if not _is_trained(run):
        return []
    config = run_config(run)
    rules = config.retention.rules()
    if not rules:
        return []
    with run.lock():
        plan, needed = _going_on(store, run, config)
        return RunRetention(store, run, rules).apply(along_plan(plan, run.stages()), needed)


def needed_to_go_on(store: ArtifactStore, run: Run) -> set[str]:
    """The artifacts that a stored run would still read if it were continued; none for one that was never
    trained. Raises ConfigError and InputError as `plan_for` does."""
    return _going_on(store, run, run_config(run))[1] if _is_trained(run) else set()


def _is_trained(run: Run) -> bool:
    return IMPORTED not in run.config and "method" in run.config


def _going_on(store: ArtifactStore, run: Run, config: RunConfig) -> tuple[Plan, set[str]]:
    """The plan with which a run would be continued, and the artifacts that it needs."""
    entries = run.recorded()
    done = completed_iterations(config, entries)
    plan = plan_beyond(store.uri, run, config, done, entries, read_sources(config))
    return plan, still_needed(plan, recorded_ids(entries), lambda each: is_whole(store, each))


class DriverRetention:
    """Prunes old files after each iteration of a training; does nothing if the configuration has no rule."""

    def __init__(self, opened: OpenRun, plan: Plan, trusted: frozenset[StageKey], sources: Sources) -> None:
        self._opened = opened
        self._rules = opened.config.retention.rules()
        if not self._rules:
            return
        self._retention = RunRetention(opened.store, opened.run, self._rules)
        self._plan = plan
        self._beyond = plan_beyond(
            opened.store.uri, opened.run, opened.config, plan.iterations, opened.entries(), sources
        )
        in_hand = {node.place for node in plan.nodes} - trusted
        self._complete = {
            place: artifact_id for place, artifact_id in opened.recorded.items() if place not in in_hand
        }

    def take(self, outcome: StageOutcome) -> None:
        """Take the outcome of an artifact that is now recorded."""
        if self._rules:
            place = StageKey(outcome.iteration or 0, outcome.stage, outcome.key)
            self._complete[place] = outcome.artifact_id
            if not outcome.reused:
                self._retention.came_back(outcome.artifact_id)

    def after_iteration(self, _iteration: int) -> None:
        """Apply the rules."""
        if not self._rules:
            return
        store = self._opened.store
        # The last iteration of the plan is evaluated; in a longer plan it may not be.
        needed = still_needed(self._plan, self._complete, lambda each: is_whole(store, each))
        needed |= still_needed(self._beyond, self._complete, lambda each: is_whole(store, each))
        self._retention.apply(along_plan(self._beyond, self._opened.stages()), needed)
