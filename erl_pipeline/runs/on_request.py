"""Evaluations on request, outside the training of a run."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.plan import POLICY, Plan, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.sources import Sources, read_sources
from erl_pipeline.runs.driver import OpenRun, execute_run
from erl_pipeline.runs.planning import stages_as_made
from erl_pipeline.stages.evaluation.evaluate import EVALUATE_ON_REQUEST
from erl_pipeline.stages.rollouts.playing import TASKS
from erl_pipeline.stages.tasks.build_environment_files import built_inputs
from erl_pipeline.stages.tasks.prepare_tasks import plan_requested_tasks
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError


def evaluate_on_request(
    opened: OpenRun,
    iteration: int,
    checkpoint_id: str,
    base_id: str | None,
    samples: int,
    *,
    count: int | None = None,
    file: Path | None = None,
) -> StageOutcome:
    """Evaluate a checkpoint of a run, on generated held-out tasks or on those of a file.

    Args:
        iteration: the checkpoint's iteration; 0 for the one with which the run began.
        base_id: the weights below the adapter, if the run trains one.
        samples: sampled attempts of each task besides the greedy one.
        count: number of held-out tasks; default: as in the run's own evaluations.
        file: a task file, instead of generated tasks.

    Raises InputError for a file that cannot be read, or whose tasks the environment refuses.
    """
    config = opened.config
    evaluation = config.evaluation.model_copy(
        update={"samples_per_task": samples, "tasks": count or config.evaluation.tasks}
    )
    config = config.model_copy(update={"evaluation": evaluation})
    sources = _with_file(read_sources(config), file)
    external = frozenset({checkpoint_id, base_id or checkpoint_id})
    planner = Planner(config, sources, external=external)
    digest = None if file is None else sources.files[str(file)]
    tasks = plan_requested_tasks(planner, digest, built_inputs(planner))
    bases = {} if base_id is None else {POLICY: base_id}
    state = RunState(tasks=tasks, models={POLICY: checkpoint_id}, initial={}, bases=bases)
    inputs = {**state.model_inputs(POLICY), TASKS: tasks}
    seed = derive_seed(config.seed, EVALUATE_ON_REQUEST.name)
    wanted = planner.add(
        EVALUATE_ON_REQUEST,
        inputs,
        iteration=iteration,
        seed=seed,
        index={"iteration": iteration},
        key=tasks,
    )
    return execute_on_request(opened, Plan(tuple(planner.nodes), (state,)), wanted)


def execute_on_request(opened: OpenRun, plan: Plan, wanted: str) -> StageOutcome:
    """Execute the plan of an evaluation; returns the outcome of the artifact `wanted`. The run's stages make
    again what retention has removed."""
    found: list[StageOutcome] = []
    makers = partial(stages_as_made, opened.store.uri, opened.run)
    execute_run(opened, plan, frozenset(), found.append, makers)
    return next(each for each in found if each.artifact_id == wanted)


def _with_file(sources: Sources, file: Path | None) -> Sources:
    if file is None:
        return sources
    try:
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"task file {file} cannot be read: {error}") from error
    return sources.with_file(file, sha256)
