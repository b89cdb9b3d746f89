"""Retention as a run's configuration sets it: by its driver after each iteration, and by maintenance."""

from __future__ import annotations

from collections.abc import Mapping

from erl_pipeline.plan.forecast import iterations_text
from erl_pipeline.plan.plan import Place, Plan
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.planning import plan_beyond, recorded_ids
from erl_pipeline.runs.state import completed_iterations, policy_makers
from storage.artifacts.store import ArtifactStore
from storage.runs.origin import IMPORTED
from storage.runs.run import Run
from storage.upkeep.retention import PlannedPruning, RunRetention

_LISTING = ("rollouts", "tasks")
"""Kinds of artifacts whose readers read what they list."""


def still_needed(plan: Plan, recorded: Mapping[Place, str]) -> set[str]:
    """Recorded artifacts that stages of a plan which are not recorded yet are made from.

    Ids of the plan may be others than those of the ledger; places say which artifact is meant.
    """
    needed: set[str] = set()
    seen: set[str] = set()
    to_follow = [
        input_id
        for node in plan.nodes
        if node.place not in recorded
        for input_id in node.recipe.inputs.values()
    ]
    while to_follow:
        planned_id = to_follow.pop()
        if planned_id in seen:
            continue
        seen.add(planned_id)
        maker = plan.by_id.get(planned_id)
        needed.add(planned_id if maker is None else recorded.get(maker.place, planned_id))
        if maker is not None and maker.stage.output in _LISTING:
            to_follow += maker.recipe.inputs.values()
    return needed


def retain_run(store: ArtifactStore, run: Run) -> list[PlannedPruning]:
    """Apply the rules of a stored run's configuration now; gives what was pruned.

    Raises RunBusy when the run is being worked on: its driver applies them itself.
    """
    if IMPORTED in run.config or "method" not in run.config:
        return []
    config = run_config(run)
    rules = config.retention.rules()
    if not rules:
        return []
    with run.lock():
        entries = run.recorded()
        done = completed_iterations(config, entries)
        plan = plan_beyond(store.uri, run, config, done, entries)
        needed = still_needed(plan, recorded_ids(entries))
        return RunRetention(store, run, rules).apply(run.stages(), needed)


def what_is_whole(opened: OpenRun) -> str:
    """A sentence on the iterations whose last checkpoint has all its files: from there everything later can
    be computed again."""
    last = policy_makers(opened.config).last
    whole = [
        entry.iteration
        for entry in opened.stages()
        if entry.stage == last and entry.iteration is not None and _is_whole(opened.store, entry.artifact_id)
    ]
    if not whole:
        return "No iteration of the run has a whole checkpoint."
    return (
        f"Whole checkpoints are those of {'iteration' if len(whole) == 1 else 'iterations'} "
        f"{iterations_text(whole)}: what follows them can be computed again."
    )


def _is_whole(store: ArtifactStore, artifact_id: str) -> bool:
    manifest = store.find(artifact_id)
    return manifest is not None and not store.pruned(manifest).files
