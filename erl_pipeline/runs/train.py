"""Training a run: a new one, one to continue, or one that begins from another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.plan import Place, Plan, RunState
from erl_pipeline.runs.driver import OpenRun, carry_out
from erl_pipeline.runs.enough_tasks import require_tasks_of
from erl_pipeline.runs.forecast.disk import DiskWatch
from erl_pipeline.runs.iteration_ends import IterationEnds
from erl_pipeline.runs.planning import plan_beyond, plan_for, whole_iterations
from erl_pipeline.runs.ready_here import require_ready_here
from erl_pipeline.runs.retention import still_needed, what_is_whole
from erl_pipeline.runs.tools import require_tools_are_known
from erl_pipeline.runs.warnings import WarningWatch
from erl_pipeline.views.trackers.recording import recorded_metrics
from storage.errors import PrunedFileError
from storage.upkeep.retention import RunRetention


@dataclass(frozen=True)
class TrainingSummary:
    """How far a run has come; its numbers are in the ledger and the manifests."""

    run: str
    iterations: int
    state: RunState


def train(
    opened: OpenRun,
    iterations: int | None = None,
    check: bool = False,
    tell: Callable[[Plan], None] | None = None,
) -> TrainingSummary:
    """Execute the plan of a run up to `iterations` (default: the configuration's).

    What is committed is reused. A start costs the same however long the run is: of the artifacts in the
    ledger, only those of the newest whole iteration are looked at, and those from which something new is
    made. With `check` all are looked at. A damaged artifact is set aside and made again.

    Args:
        tell: is called with the plan before anything is done.

    Raises InputError, before a run's first stage, if its environment cannot offer the policy its tools or
    gives too few tasks, or if a file or a model that it names is not there; ConfigError if its trainer needs
    more devices than this machine has.
    """
    require_ready_here(opened.config)
    if not opened.recorded:
        require_tools_are_known(opened.config)
    target = iterations or opened.config.iterations
    plan = plan_for(opened.store.uri, opened.run, opened.config, target, entries=opened.entries())
    for sentence in require_tasks_of(plan, opened.config, opened.store):
        opened.listener.warn(f"{sentence}.")
    if tell is not None:
        tell(plan)
    trusted = frozenset() if check else trusted_places(plan, opened.recorded)
    disk = DiskWatch(opened, plan)
    disk.before_run()
    with (
        recorded_metrics(opened.config, opened.store, opened.run, opened.stages()) as records,
        opened.observed_by([record.add for record in records]),
    ):
        warnings = WarningWatch(opened, [record.warn for record in records])
        warnings.before_run()
        calls = [warnings.after_iteration, *_retention(opened, target), disk.after_iteration]
        ends = IterationEnds(plan, trusted, calls)

        def on_outcome(outcome: StageOutcome) -> None:
            disk.take(outcome)
            ends.take(outcome)

        try:
            carry_out(opened, plan, trusted, on_outcome)
        except PrunedFileError as gone:
            raise PrunedFileError(f"{gone} {what_is_whole(opened)}") from gone
    return TrainingSummary(opened.run.name, target, plan.states[-1])


def _retention(opened: OpenRun, target: int) -> list[Callable[[int], None]]:
    """The calls that prune old files after an iteration; none if the configuration has no rule."""
    rules = opened.config.retention.rules()
    if not rules:
        return []
    beyond = plan_beyond(opened.store.uri, opened.run, opened.config, target, opened.entries())
    retention = RunRetention(opened.store, opened.run, rules)

    def retain(_iteration: int) -> None:
        retention.apply(opened.stages(), still_needed(beyond, opened.recorded))

    return [retain]


def trusted_places(plan: Plan, recorded: Mapping[Place, str]) -> frozenset[Place]:
    """The places where the ledger has what the plan has, except those of the newest whole iteration."""
    newest = whole_iterations(plan, recorded)
    return frozenset(
        place
        for node in plan.nodes
        if recorded.get(place := node.place) == node.artifact_id and place.iteration != newest
    )
