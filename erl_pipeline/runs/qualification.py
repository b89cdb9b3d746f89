"""Examining the environment of a configuration, and finding the results of earlier examinations."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.execution import Execution, execute
from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.runner import InProcessConfig, Runner, RunnerCall, run_in_process
from erl_pipeline.plan.sources import examined_sources
from erl_pipeline.plan.stage import Listener, StageOutcome, WorkerSettings
from erl_pipeline.qualification.check import Qualification, parse_qualification
from erl_pipeline.stages.tasks.environment_stages import (
    QUALIFICATION,
    QUALIFY_ENVIRONMENT,
    plan_qualification,
)
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.run import Run


@dataclass(frozen=True)
class Qualified:
    """An examination and its artifact."""

    outcome: StageOutcome
    qualification: Qualification


def qualify_environment(
    config: RunConfig,
    store_uri: str,
    tasks: int,
    answers: int,
    listener: Listener,
    stop: threading.Event,
) -> Qualified:
    """Examine the environment of a configuration, with its seed. A stored examination with the same settings
    is reused.

    Args:
        tasks: how many tasks are attempted.
        answers: number of hostile answers, over all tasks.

    Raises InputError for files that cannot be read, and `Interrupted` once `stop` is set.
    """
    planner = Planner(config, examined_sources(config))
    plan_qualification(planner, tasks, answers)
    store = ArtifactStore(store_uri, config.resources.threads, config.store.cache())
    worker = WorkerSettings(store_uri, config.name, config.resources.threads, cache=config.store.cache())
    found: list[StageOutcome] = []

    def record(_planned: PlannedStage, outcome: StageOutcome) -> None:
        found.append(outcome)

    def body(runner: Runner) -> None:
        execute(
            Plan(tuple(planner.nodes), ()),
            Execution(store, runner, worker, 1, listener, record, stop.is_set),
        )

    run_in_process(InProcessConfig(), RunnerCall(worker, 1, listener, stop), body)
    outcome = next(each for each in found if each.stage == QUALIFY_ENVIRONMENT.name)
    document = store.open(outcome.artifact_id).path(QUALIFICATION).read_text(encoding="utf-8")
    return Qualified(outcome, parse_qualification(document))


def find_qualification(store: ArtifactStore, tasks: Recipe) -> tuple[Manifest, Qualification] | None:
    """The newest examination of a run's environment: one with the same settings, files and code, whatever its
    seed and number of tasks.

    Args:
        tasks: the recipe of the run's tasks.
    """
    of_it: list[Manifest] = []
    for artifact_id in store.ids(QUALIFY_ENVIRONMENT.name):
        # A damaged examination is ignored; the next one makes it again.
        with suppress(StoreError):
            manifest = store.find(artifact_id, QUALIFY_ENVIRONMENT.name)
            if manifest is not None and _examines(manifest, tasks):
                of_it.append(manifest)
    if not of_it:
        return None
    newest = max(of_it, key=lambda manifest: manifest.finished_at)
    document = store.open_file(newest, QUALIFICATION).read_text(encoding="utf-8")
    return newest, parse_qualification(document)


def state_of_qualification(store: ArtifactStore, tasks: Recipe) -> tuple[bool, str]:
    """Whether the environment of a run is qualified in this store, and a sentence that says so."""
    name = tasks.settings["environment"]["type"]
    found = find_qualification(store, tasks)
    if found is None:
        return False, f"environment {name} was never qualified in this store as it is now configured"
    manifest, qualification = found
    if qualification.failed:
        failed = ", ".join(qualification.failed)
        return False, f"environment {name} failed its qualification {manifest.artifact_id[:12]}: {failed}"
    return True, f"environment {name} is qualified (artifact {manifest.artifact_id[:12]})"


def tasks_of_plan(plan: Plan) -> Recipe | None:
    """The recipe of the tasks that a run trains on; None if no stage of the plan makes them."""
    found = (node.recipe for node in plan.nodes if node.stage.output == "tasks" and not node.iteration)
    return next((recipe for recipe in found if "environment" in recipe.settings), None)


def tasks_of_run(store: ArtifactStore, run: Run) -> Recipe | None:
    """The recipe of the tasks that a stored run trains on; None if it has none."""
    for entry in run.stages():
        if entry.kind == "tasks" and not entry.iteration:
            manifest = store.find(entry.artifact_id, entry.stage)
            if manifest is not None and "environment" in manifest.settings:
                return manifest.recipe
    return None


def _examines(manifest: Manifest, tasks: Recipe) -> bool:
    """Whether an examination is of the environment of these tasks; its own code has more than theirs."""
    same = all(manifest.settings[name] == tasks.settings[name] for name in ("environment", "files"))
    return same and manifest.code.items() >= tasks.code.items()
