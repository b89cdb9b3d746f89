"""Retention by the rules of a run's configuration: its driver applies them after each iteration, and
maintenance applies them to stored runs."""

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
"""Kinds of artifacts that list others; whoever reads them also reads what they list."""


def still_needed(plan: Plan, recorded: Mapping[Place, str]) -> set[str]:
    """The recorded artifacts that a plan still needs: inputs of stages that are not recorded yet.

    The plan may have other ids than the ledger, so artifacts are matched by their places.
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
    """Apply the rules of a stored run's configuration now; return what was pruned.

    Raises RunBusy when a process is working on the run; its driver then applies the rules itself.
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
    """A sentence that names the iterations whose last checkpoint has all its files. Everything after such an
    iteration can be computed again."""
    last = policy_makers(opened.config).last
    whole = [
        entry.iteration
        for entry in opened.stages()
        if entry.stage == last and entry.iteration is not None and _is_whole(opened.store, entry.artifact_id)
    ]
    if not whole:
        return "No iteration of the run has a complete checkpoint."
    return (
        f"Complete checkpoints are those of {'iteration' if len(whole) == 1 else 'iterations'} "
        f"{iterations_text(whole)}: everything after them can be computed again."
    )


def _is_whole(store: ArtifactStore, artifact_id: str) -> bool:
    manifest = store.find(artifact_id)
    return manifest is not None and not store.pruned(manifest).files
